"""Rules between options of loss scaling, and of what is done about values that are not finite."""

import math
from collections.abc import Callable, Iterator

from convoy.config.problems import Problem
from convoy.config.schema import RunConfig


def ladders_lead_to_the_scale(run: RunConfig) -> Iterator[Problem]:
    """Doubling must come to --loss-scaling itself: a user who names a scale expects it."""
    first, last = run.loss.initial_loss_scaling, run.loss.loss_scaling
    if first is None or run.loss.auto_loss_scaling or not 0 < first < math.inf or not last > 0:
        return  # there is no ladder, or a limit is told already
    if first > last:
        text = f"{first:g} is above --loss-scaling {last:g}, to which it is doubled"
        yield Problem("--initial-loss-scaling", text)
        return
    fraction, exponent = math.frexp(last / first)
    if fraction != 0.5:
        below = math.ldexp(first, exponent - 1)
        yield Problem(
            "--loss-scaling",
            f"{last:g} is no doubling of --initial-loss-scaling {first:g}; "
            f"use {below:g} or {2 * below:g}",
        )


def programs_have_no_traps(run: RunConfig) -> Iterator[Problem]:
    if run.precision.enable_fp_exceptions and run.compiler.compile:
        text = "cannot look into the programs of --compile; leave one of them out"
        yield Problem("--enable-fp-exceptions", text)


def traps_leave_the_scale_alone(run: RunConfig) -> Iterator[Problem]:
    """An automatic scale is found by letting gradients overflow."""
    wishes = run.precision.enable_fp_exceptions and run.loss.auto_loss_scaling
    if wishes and run.precision.precision != "32.32":
        text = "would stop where --auto-loss-scaling goes on with half the scale; leave one out"
        yield Problem("--enable-fp-exceptions", text)


LOSS_RULES: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    ladders_lead_to_the_scale,
    programs_have_no_traps,
    traps_leave_the_scale_alone,
)
