"""Options of what is kept and told: checkpoints, averages, validation, reports."""

from dataclasses import dataclass

from convoy.config.fields import above, at_least, not_yet, one_of, option


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is written to go on from."""

    checkpoint_output_path: str | None = option(
        None, "Run folder; unset makes a new one in --log-dir.", also=("--output",), free=True
    )
    init_path: str | None = option(
        None,
        "Begin with the weights of this run (its newest sound checkpoint) or checkpoint; "
        "the training itself begins anew.",
    )
    pretrained: str | None = option(
        None,
        "Begin with weights in the names of torchvision or timm: a file, or hf:OWNER/NAME; "
        "without a value those published for the model.",
    )
    ckpts_per_epoch: int = option(
        1, "Checkpoints per epoch; 0 writes none.", at_least(0), free=True
    )
    epochs_per_ckpt: int = option(
        0,
        "Epochs from one checkpoint to the next; 0 leaves it to --ckpts-per-epoch.",
        at_least(0),
        also=("--checkpoint-save-freq",),
        free=True,
    )
    ckpt_epochs_offset: int | None = option(
        None,
        "Epochs before the first checkpoint; unset: with --epochs-per-ckpt so many that the last "
        "one falls on the end.",
        at_least(0),
        free=True,
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

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints at all, beside that of a stop."""
        return self.ckpts_per_epoch > 0 or self.epochs_per_ckpt > 0


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """One set of weights out of many: checkpoints, when training ends or by `convoy average`, or
    those of every update."""

    weight_avg_strategy: str = option(
        "none",
        "Average of the checkpoints that a run makes at its end; `convoy average` takes the mean "
        "where none is chosen.",
        one_of("none", "mean", "exponential"),
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
    ema_decay: float = option(
        0.0,
        "Share of the old average kept at each update, by an average of the weights that is "
        "measured beside them and kept at the end; 0: none.",
        at_least(0, at_most=0.999999),
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
    random_weights: bool = option(
        False, "Measure a fresh network; `convoy validate` then needs no run.", free=True
    )
    repeat: int = option(
        1, "Times `convoy validate` measures the same weights.", at_least(1), free=True
    )
    latency: bool = option(
        False,
        "Tell how long `convoy validate` takes for a batch: mean and 99th percentile.",
        free=True,
    )
    backend: str = option(
        "torch",
        "What computes the answers of `convoy validate`: torch, torch.compile, or ONNX Runtime "
        "(an extra).",
        one_of("torch", "compiled", "onnxruntime"),
        free=True,
    )
    num_inference_thread: int = not_yet(
        option(
            1,
            "Threads of `convoy validate` that ask for answers side by side.",
            at_least(1, at_most=512),
            free=True,
        )
    )


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What a person and a program see."""

    logs_per_epoch: int | None = option(
        4,
        "Reports per epoch; 0 reports only the end. Unset by --log-freq.",
        at_least(0),
        free=True,
    )
    log_freq: int | None = option(
        None,
        "Updates from one report to the next, instead of --logs-per-epoch.",
        at_least(1),
        free=True,
    )
    log_dir: str = option("runs", "Parent of new run folders.", free=True)
    name: str | None = option(None, "Name of the run folder.", free=True)
    name_suffix: str | None = option(
        None, "Comes behind the name of the run folder, given or found.", free=True
    )
    progress: str = option(
        "auto",
        "Live display on a terminal, plain lines elsewhere.",
        one_of("auto", "rich", "plain", "none"),
        free=True,
    )
    logs: bool = not_yet(option(True, "Write a run folder at all.", free=True))
    disable_metrics: bool = not_yet(
        option(
            False, "Compute no loss and accuracy for reports, to see the highest speed.", free=True
        )
    )
    analyze_nans: bool = not_yet(
        option(
            False,
            "Count the values of each checkpoint that are no numbers, and send them to "
            "Weights & Biases.",
            also=("--analyse-nans",),
            free=True,
        )
    )
    mlperf_logging: bool = not_yet(
        option(False, "Write the events of the MLPerf rules to a file of their own.", free=True)
    )
    profile: bool = not_yet(option(False, "Trace one update into a file, then stop.", free=True))
    profile_compilation: bool = not_yet(
        option(False, "Trace how the network is made ready, then stop.", free=True)
    )
    wandb: bool = not_yet(option(False, "Send reports to Weights & Biases.", free=True))
    wandb_project: str = not_yet(
        option("convoy", "Project of Weights & Biases that gets the reports.", free=True)
    )
    wandb_id: str | None = not_yet(
        option(None, "Run of Weights & Biases to go on with.", free=True)
    )
    wandb_weight_histogram: bool = not_yet(
        option(False, "Send histograms of the weights to Weights & Biases, too.", free=True)
    )
