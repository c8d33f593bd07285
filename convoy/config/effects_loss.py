"""Options of loss scaling and of non-finite values that can do nothing, and why."""

from convoy.config.effects_keeping import Idle
from convoy.config.schema import RunConfig


def the_scale_finds_itself(run: RunConfig) -> str | None:
    follows = run.loss.auto_loss_scaling
    return "with --auto-loss-scaling: it begins with --loss-scaling" if follows else None


def all_numbers_have_32_bits(run: RunConfig) -> str | None:
    if run.precision.precision != "32.32" or run.precision.force_weight_to_fp16:
        return None
    return "with --precision 32.32: no gradient has 16 bits"


def the_first_value_stops(run: RunConfig) -> str | None:
    return "with --enable-fp-exceptions" if run.precision.enable_fp_exceptions else None


def nothing_is_skipped(run: RunConfig) -> str | None:
    return None if run.loss.on_nonfinite == "skip" else "with --on-nonfinite stop"


# In the order of the option table. The first reason that holds is told.
IDLE_LOSS: dict[str, tuple[Idle, ...]] = {
    "initial_loss_scaling": (the_scale_finds_itself,),
    "auto_loss_scaling": (all_numbers_have_32_bits,),
    "on_nonfinite": (the_first_value_stops,),
    "max_skipped": (nothing_is_skipped, the_first_value_stops),
}
