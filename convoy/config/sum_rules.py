"""Rules of how gradients are summed, weight by weight: what they say, and what is wrong in them."""

import re
from collections.abc import Iterator

from convoy.config.problems import Problem
from convoy.config.schema import RunConfig, option_table
from convoy.registry import suggest

TYPES = "--accumulator-dtype-rules"
MEANS = "--gradient-mean-reduce-re"


def divided_rule(text: str) -> tuple[str, str]:
    """`fc.*=float32` → the pattern of names and the type; what lacks one of them has it empty."""
    pattern, _, word = text.rpartition("=")
    return pattern, word


def rules_of_sums_have_types(run: RunConfig) -> Iterator[Problem]:
    known = option_table()["accumulator_dtype"].declared.limit.choices
    for text in run.memory.accumulator_dtype_rules:
        pattern, word = divided_rule(text)
        if not pattern:
            yield Problem(TYPES, f"{text!r} is no rule: write PATTERN=TYPE, as 'fc.*=float32'")
        elif word not in known:
            yield Problem(TYPES, f"{text!r} names no type; {suggest(word, known)}")


def means_have_patterns(run: RunConfig) -> Iterator[Problem]:
    for pattern in run.optimizer.gradient_mean_reduce_re:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            text = f"{pattern!r} is no pattern: {error}; the name of a parameter is one"
            yield Problem(MEANS, f"{text}, as fc.weight")
