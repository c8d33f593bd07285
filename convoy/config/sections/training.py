"""Options of batches, length, learning rate, optimizer and loss."""

from dataclasses import dataclass

from convoy.config.fields import above, at_least, no_counterpart, one_of, option


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How samples are grouped into passes and updates."""

    micro_batch_size: int = option(
        32, "Samples in one forward and backward pass.", at_least(1), also=("--batch-size",)
    )
    gradient_accumulation: int = option(
        1,
        "Micro-batches of one replica summed before each weight update.",
        at_least(1, at_most=65536),
        free=True,
    )
    replicas: int = option(
        1,
        "Copies of the network, each with its own samples.",
        at_least(1, at_most=65536),
        free=True,
    )
    device_iterations: int = no_counterpart(
        option(1, "Updates between two returns to the host.", at_least(1), free=True),
        "updates follow each other without the host, which reads results at reports only",
    )


@dataclass(frozen=True, kw_only=True)
class LengthConfig:
    """How long the run is. The higher source of `epoch` and `updates` wins."""

    epoch: float | None = option(5, "Length in epochs.", above(0), also=("--epochs",))
    updates: int | None = option(None, "Length in weight updates.", at_least(1))
    stop_after: int | None = option(
        None,
        "Save and stop after this update (exit 75); `convoy resume` goes on.",
        at_least(1),
        free=True,
    )
    epochs_before: float = option(
        0,
        "Epochs that the first weights were trained for: reports and the order of samples count "
        "on from there.",
        at_least(0, at_most=1e9),
    )


@dataclass(frozen=True, kw_only=True)
class LearningRateConfig:
    """How large each update is. The higher source of `lr` and its exponent wins."""

    lr: float | None = option(0.1, "Learning rate.", at_least(0, at_most=1e30))
    base_learning_rate_exponent: float | None = option(
        None,
        "N of a learning rate of 2^N × samples per update; instead of --lr.",
        at_least(-200, at_most=100),
    )
    lr_schedule: str = option(
        "cosine", "How the rate falls.", one_of("step", "cosine", "exponential", "polynomial")
    )
    lr_decay: float = option(
        0.5,
        "Factor of each drop (step) or of each schedule step (exponential).",
        above(0, at_most=1),
    )
    lr_epoch_decay: tuple[float, ...] = option((), "Epochs at which step drops.", at_least(0))
    lr_share_decay: tuple[float, ...] = option(
        (), "Shares of the whole run at which step drops.", at_least(0, at_most=1)
    )
    lr_multipliers: tuple[float, ...] = option(
        (),
        "Rates of step as multiples of --lr: the first, then one for each drop; "
        "unset: powers of --lr-decay.",
        at_least(0, at_most=1e30),
    )
    lr_drops: int | None = option(
        None, "Changes of the rate in the whole run; instead of --lr-scheduler-freq.", at_least(1)
    )
    lr_scheduler_freq: float = option(
        0, "Changes of the rate per epoch; 0 changes it at every update.", at_least(0)
    )
    warmup_epoch: float = option(0, "Epochs of linear warm-up.", at_least(0))
    poly_lr_decay_power: float = option(2.0, "Exponent of polynomial.", above(0))
    poly_lr_end_ratio: float = option(
        1e-5, "Last rate of polynomial, as a share of --lr.", at_least(0, at_most=1)
    )
    abs_end_learning_rate: float | None = option(
        None, "Last rate of polynomial itself, instead of a share.", at_least(0, at_most=1e30)
    )
