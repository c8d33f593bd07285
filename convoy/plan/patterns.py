"""Patterns and parts of names that choose parameters: each must choose some of the network."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from convoy.config.problems import Problem, refuse
from convoy.config.schema import RunConfig
from convoy.config.sum_rules import MEANS, TYPES, divided_rule
from convoy.plan.layers import LayerPlan
from convoy.plan.parameters import parameter_names
from convoy.registry import near_names

_WORDS = ("gamma", "beta", "proxy")  # of a norm's weights; its running statistics are `moving_`


def refuse_idle_patterns(config: RunConfig, layers: Iterable[LayerPlan]) -> None:
    """What was asked for no parameter was asked in vain."""
    means, types = config.optimizer.gradient_mean_reduce_re, config.memory.accumulator_dtype_rules
    wish = config.precision
    parts = {
        "--force-weight-to-fp16": wish.force_weight_to_fp16,
        "--force-weight-to-fp32": wish.force_weight_to_fp32,
    }
    if means or types or any(parts.values()):
        names = parameter_names(layers)
        refuse([*_idle_means(means, names), *_idle_types(types, names), *_idle_parts(parts, names)])


def _idle_parts(parts: Mapping[str, Sequence[str]], names: Sequence[str]) -> Iterator[Problem]:
    for flag, given in parts.items():
        for part in given:
            if not any(part in name for name in (*names, *_WORDS)) and "moving_" not in part:
                yield Problem(flag, _matches_nothing(part, names))


def _idle_means(patterns: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    for pattern in patterns:
        if not any(map(re.compile(pattern).fullmatch, names)):
            yield Problem(MEANS, _matches_nothing(pattern, names))


def _idle_types(rules: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    left = set(names)  # of which no rule has spoken yet
    for text in rules:
        pattern, _ = divided_rule(text)
        chosen = {name for name in names if fnmatchcase(name, pattern)}
        if not chosen:
            yield Problem(TYPES, _matches_nothing(pattern, names))
        elif not chosen & left:
            text = f"{text!r} never holds: the rules before it speak of the same parameters"
            yield Problem(TYPES, f"{text}, and the first that fits wins")
        left -= chosen


def _matches_nothing(pattern: str, names: Sequence[str]) -> str:
    near = near_names(pattern, names)
    way_out = f"did you mean {', '.join(near)}?" if near else f"a whole name is one: {names[0]}"
    return f"{pattern!r} matches no parameter of this model; {way_out}"
