"""How the gradients of every weight are summed, as the configuration wants it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from convoy.config.schema import RunConfig
from convoy.config.sum_rules import divided_rule
from convoy.numerics.gradients import ACCUMULATOR_TYPES
from convoy.numerics.reductions import DIVIDED_FIRST


@dataclass(frozen=True)
class Sums:
    """What a weight asks of its gradient tree."""

    dtype: torch.dtype | None  # None is the type in which the weight is kept
    reduction: str  # by name, as a kind says it


def sums_of(config: RunConfig) -> Callable[[str], Sums]:
    """The sums of each weight, by its name."""
    rules = [divided_rule(one) for one in config.memory.accumulator_dtype_rules]
    divided = [re.compile(one) for one in config.optimizer.gradient_mean_reduce_re]

    def sums_for(name: str) -> Sums:
        words = (word for pattern, word in rules if fnmatchcase(name, pattern))
        dtype = ACCUMULATOR_TYPES[next(words, config.memory.accumulator_dtype)]
        is_divided = any(one.fullmatch(name) for one in divided)
        return Sums(dtype, DIVIDED_FIRST if is_divided else config.memory.gradient_reduction)

    return sums_for
