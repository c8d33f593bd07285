"""Options of what is kept and told: checkpoints, averages, validation, reports."""

from dataclasses import dataclass

from convoy.config.fields import above, at_least, one_of, option


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is written to go on from."""

    checkpoint_output_path: str | None = option(
        None, "Run folder; unset makes a new one in --log-dir.", also=("--output",), free=True
    )
    ckpts_per_epoch: int = option(
        1, "Checkpoints per epoch; 0 writes none.", at_least(0), free=True
    )
    keep_last: int = option(
        0,
        "Newest checkpoints kept; 0 keeps all.",
        at_least(0),
        also=("--max-ckpts-to-keep",),
        free=True,
    )
    on_save_error: str = option(
        "stop", "When a checkpoint cannot be written.", one_of("stop", "continue"), free=True
    )


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """One set of weights out of many checkpoints (`convoy average`)."""

    weight_avg_strategy: str = option(
        "mean",
        "Mean of the checkpoints, or an exponential average.",
        one_of("mean", "exponential"),
        free=True,
    )
    weight_avg_n: int = option(
        -1,
        "Newest checkpoints to average; -1 (or 0) takes all.",
        at_least(-1),
        also=("--weight-avg-N",),
        free=True,
    )
    weight_avg_exp_decay: float = option(
        0.99,
        "Share of the old average kept at each checkpoint.",
        above(0, at_most=0.999999),
        free=True,
    )
    norm_statistics: str = option(
        "recompute",
        "Running statistics of the average: recompute them over the training data, "
        "average them too, or keep the newest checkpoint's.",
        one_of("recompute", "average", "keep"),
        free=True,
    )


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """When accuracy is measured."""

    validation_mode: str = option(
        "after",
        "During training, only after it, or never.",
        one_of("none", "during", "after"),
        free=True,
    )
    validation_frequency: int = option(
        1, "Epochs between validations in mode during.", at_least(1), free=True
    )
    valid_batch_size: int = option(256, "Samples in one validation pass.", at_least(1), free=True)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What a person and a program see."""

    logs_per_epoch: int = option(
        4, "Reports per epoch; 0 reports only the end.", at_least(0), free=True
    )
    log_dir: str = option("runs", "Parent of new run folders.", free=True)
    name: str | None = option(None, "Name of the run folder.", free=True)
    progress: str = option(
        "auto",
        "Live display on a terminal, plain lines elsewhere.",
        one_of("auto", "rich", "plain", "none"),
        free=True,
    )
