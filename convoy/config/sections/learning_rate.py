"""How large each update is."""

from dataclasses import dataclass
from fractions import Fraction

from convoy.config.option import Exclusion, Run, option, unless, when

not_step = unless("lr_schedule", "step")
not_polynomial = unless("lr_schedule", "polynomial")
step_never_drops = when(
    lambda run: (
        run.learning_rate.lr_schedule == "step"
        and not (run.learning_rate.lr_epoch_decay or run.learning_rate.lr_share_decay)
    ),
    "with --lr-schedule step without --lr-epoch-decay",
)
step_has_multipliers = when(
    lambda run: run.learning_rate.lr_schedule == "step" and run.learning_rate.lr_multipliers,
    "beside --lr-multipliers",
)


def step_drops_on_changes(run: Run) -> str | None:
    """A drop waits for the next change of the rate, but here each falls on one."""
    rate = run.learning_rate
    often = Fraction(str(rate.lr_scheduler_freq))
    if rate.lr_schedule != "step" or not often or rate.lr_share_decay:
        return None
    waits = any((often * Fraction(str(epoch))).denominator > 1 for epoch in rate.lr_epoch_decay)
    return None if waits else "with --lr-schedule step: every drop falls on a change"


@dataclass(frozen=True, kw_only=True)
class LearningRateConfig:
    """How large each update is. The higher source of `lr` and its exponent wins."""

    lr: float | None = option(
        0.1,
        "Learning rate.",
        between=(0, 1e30),
        excludes=Exclusion("base_learning_rate_exponent", "set the rate", needed=True),
    )
    base_learning_rate_exponent: float | None = option(
        None,
        "N of a learning rate of 2^N × samples per update; instead of --lr.",
        between=(-200, 100),
    )
    lr_schedule: str = option(
        "cosine", "How the rate falls.", choices=("step", "cosine", "exponential", "polynomial")
    )
    lr_decay: float = option(
        0.5,
        "Factor of each drop (step) or of each schedule step (exponential).",
        above=0,
        at_most=1,
        idle=(unless("lr_schedule", "step", "exponential"), step_has_multipliers, step_never_drops),
    )
    lr_epoch_decay: tuple[float, ...] = option(
        (),
        "Epochs at which step drops.",
        at_least=0,
        excludes=Exclusion("lr_share_decay"),
        idle=not_step,
    )
    lr_share_decay: tuple[float, ...] = option(
        (), "Shares of the whole run at which step drops.", between=(0, 1), idle=not_step
    )
    lr_multipliers: tuple[float, ...] = option(
        (),
        "Rates of step as multiples of --lr: the first, then one for each drop; "
        "unset: powers of --lr-decay.",
        between=(0, 1e30),
        idle=not_step,
    )
    lr_drops: int | None = option(
        None,
        "Changes of the rate in the whole run; instead of --lr-scheduler-freq.",
        at_least=1,
        excludes=Exclusion("lr_scheduler_freq", "say when"),
        idle=step_never_drops,
    )
    lr_scheduler_freq: float = option(
        0,
        "Changes of the rate per epoch; 0 changes it at every update.",
        at_least=0,
        idle=(step_never_drops, step_drops_on_changes),
    )
    warmup_epoch: float = option(0, "Epochs of linear warm-up.", at_least=0)
    poly_lr_decay_power: float = option(
        2.0, "Exponent of polynomial.", above=0, idle=not_polynomial
    )
    poly_lr_end_ratio: float = option(
        1e-5, "Last rate of polynomial, as a share of --lr.", between=(0, 1), idle=not_polynomial
    )
    abs_end_learning_rate: float | None = option(
        None,
        "Last rate of polynomial itself, instead of a share.",
        between=(0, 1e30),
        excludes=Exclusion("poly_lr_end_ratio", "set the last rate"),
        idle=not_polynomial,
    )
