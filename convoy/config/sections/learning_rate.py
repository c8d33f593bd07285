"""How large each update is."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import Exclusion, option

STEP = {"lr_schedule": ("step",)}
POLYNOMIAL = {"lr_schedule": ("polynomial",)}


@dataclass(frozen=True, kw_only=True)
class LearningRateConfig:
    """How large each update is. The higher source of `lr` and its exponent wins."""

    lr: float | None = option(
        0.1,
        "Learning rate.",
        at_least=0,
        at_most=1e30,
        excludes=Exclusion("base_learning_rate_exponent", "set the rate", needed=True),
    )
    base_learning_rate_exponent: float | None = option(
        None,
        "N of a learning rate of 2^N × samples per update; instead of --lr.",
        at_least=-200,
        at_most=100,
    )
    lr_schedule: str = option(
        "cosine", "How the rate falls.", choices=("step", "cosine", "exponential", "polynomial")
    )
    lr_decay: float = option(
        0.5,
        "Factor of each drop (step) or of each schedule step (exponential).",
        above=0,
        at_most=1,
        only_with={"lr_schedule": ("step", "exponential")},
        idle=(inactive.step_has_multipliers, inactive.step_never_drops),
    )
    lr_epoch_decay: tuple[float, ...] = option(
        (),
        "Epochs at which step drops.",
        at_least=0,
        excludes=Exclusion("lr_share_decay"),
        only_with=STEP,
    )
    lr_share_decay: tuple[float, ...] = option(
        (), "Shares of the whole run at which step drops.", at_least=0, at_most=1, only_with=STEP
    )
    lr_multipliers: tuple[float, ...] = option(
        (),
        "Rates of step as multiples of --lr: the first, then one for each drop; "
        "unset: powers of --lr-decay.",
        at_least=0,
        at_most=1e30,
        only_with=STEP,
    )
    lr_drops: int | None = option(
        None,
        "Changes of the rate in the whole run; instead of --lr-scheduler-freq.",
        at_least=1,
        excludes=Exclusion("lr_scheduler_freq", "say when"),
        idle=inactive.step_never_drops,
    )
    lr_scheduler_freq: float = option(
        0,
        "Changes of the rate per epoch; 0 changes it at every update.",
        at_least=0,
        idle=(inactive.step_never_drops, inactive.step_drops_on_changes),
    )
    warmup_epoch: float = option(0, "Epochs of linear warm-up.", at_least=0)
    poly_lr_decay_power: float = option(
        2.0, "Exponent of polynomial.", above=0, only_with=POLYNOMIAL
    )
    poly_lr_end_ratio: float = option(
        1e-5,
        "Last rate of polynomial, as a share of --lr.",
        at_least=0,
        at_most=1,
        only_with=POLYNOMIAL,
    )
    abs_end_learning_rate: float | None = option(
        None,
        "Last rate of polynomial itself, instead of a share.",
        at_least=0,
        at_most=1e30,
        excludes=Exclusion("poly_lr_end_ratio", "set the last rate"),
        only_with=POLYNOMIAL,
    )
