"""The options for checkpoints, weight averaging, validation and reports."""

from dataclasses import dataclass
from functools import partial

from convoy.config.option import (
    Condition,
    Exclusion,
    condition,
    option,
    option_is,
    option_is_not,
    runtime_option,
)


def no_checkpoints(detail: str = "") -> Condition:
    """Checkpoints are disabled; `detail` completes the message."""
    return condition(
        lambda run: not run.checkpoint.saves_checkpoints, f"with --ckpts-per-epoch 0{detail}"
    )


no_average = option_is("weight_avg_strategy", "none", reason="only `convoy average` uses it")
nothing_to_average = condition(
    lambda run: not run.checkpoint.saves_checkpoints and run.average.weight_avg_strategy != "none",
    "with --ckpts-per-epoch 0: there are no checkpoints to average",
)
above_keep_last = condition(
    lambda run: 0 < run.checkpoint.keep_last < run.average.weight_avg_n,
    "above --keep-last {run.checkpoint.keep_last}",
)
ema_is_never_used = condition(
    lambda run: not run.checkpoint.saves_checkpoints and run.validation.validation_mode == "none",
    "with --ckpts-per-epoch 0 and --validation-mode none: it is neither saved nor validated",
)


directory_option = partial(runtime_option, fixed_reason="the folder of a run cannot be changed")
init_weights_option = partial(option, fixed_reason="a resumed run continues with its own weights")
no_validation = option_is("validation_mode", "none", reason="only `convoy validate` uses it")
output_is_set = condition(
    lambda run: run.checkpoint.checkpoint_output_path is not None, "with --output"
)


only_for_validate = condition(lambda _: True, "on training: only `convoy validate` uses it")
validate_option = partial(runtime_option, inactive_when=only_for_validate)
unavailable_switch = partial(runtime_option, False, available_values=(False,))  # in this version


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints."""

    checkpoint_output_path: str | None = directory_option(
        None,
        "Folder of the run. Default: a new folder in --log-dir.",
        aliases=("--output",),
        help_flag="--output",
        metavar="DIR",
    )
    init_path: str | None = init_weights_option(
        None,
        "Initialize the weights from a checkpoint, or from the newest valid checkpoint of a run. "
        "Training starts from the beginning.",
        metavar="DIR",
    )
    pretrained: str | None = init_weights_option(
        None,
        "Pretrained weights: a file with torchvision or timm keys, or hf:OWNER/NAME. Without a "
        "value, use those published for the model.",
        metavar="WEIGHTS",
    )
    ckpts_per_epoch: int = runtime_option(1, "Checkpoints per epoch; 0 writes none.", at_least=0)
    epochs_per_ckpt: int = runtime_option(
        0,
        "Epochs between checkpoints; 0 uses --ckpts-per-epoch.",
        at_least=0,
        aliases=("--checkpoint-save-freq",),
    )
    ckpt_epochs_offset: int | None = runtime_option(
        None,
        "Epochs before the first checkpoint. Default with --epochs-per-ckpt: chosen so that the "
        "last checkpoint falls on the end of training.",
        at_least=0,
        inactive_when=no_checkpoints(),
    )
    keep_last: int = runtime_option(
        0,
        "Number of newest checkpoints to keep; 0 keeps all.",
        at_least=0,
        aliases=("--max-ckpts-to-keep",),
        inactive_when=no_checkpoints(", unless the run is stopped"),
    )
    on_save_error: str = runtime_option(
        "stop",
        "What to do if a checkpoint cannot be written: stop, or continue training.",
        choices=("stop", "continue"),
        inactive_when=no_checkpoints(": the checkpoint of a stopped run must be written"),
    )

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the run writes checkpoints at regular intervals."""
        return self.ckpts_per_epoch > 0 or self.epochs_per_ckpt > 0


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Weight averaging.

    The average is over checkpoints, when training ends or with `convoy average`, or over every
    update (EMA).
    """

    weight_avg_strategy: str = runtime_option(
        "none",
        "How to average the checkpoints when training ends. With none, a run averages nothing and "
        "`convoy average` uses the mean.",
        choices=("none", "mean", "exponential"),
        inactive_when=nothing_to_average,
    )
    weight_avg_n: int = runtime_option(
        -1,
        "Number of newest checkpoints to average; -1 or 0 averages all.",
        at_least=-1,
        aliases=("--weight-avg-N",),
        inactive_when=(no_average, no_checkpoints(), above_keep_last),
    )
    weight_avg_exp_decay: float = runtime_option(
        0.99,
        "Decay of the exponential average over checkpoints.",
        above=0,
        at_most=0.999999,
        inactive_when=(no_average, no_checkpoints(), option_is("weight_avg_strategy", "mean")),
    )
    norm_statistics: str = runtime_option(
        "recompute",
        "Running statistics of averaged weights: recompute them on the training data, average "
        "them too, or keep those of the newest checkpoint.",
        choices=("recompute", "average", "keep"),
        inactive_when=(no_average, no_checkpoints()),
    )
    ema_decay: float = runtime_option(
        0.0,
        "Decay of an exponential moving average (EMA) of the weights, which is updated at every "
        "step, validated together with the weights and saved at the end; 0 disables it.",
        between=(0, 0.999999),
        inactive_when=ema_is_never_used,
    )


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validation."""

    validation_mode: str = runtime_option(
        "after",
        "Validate during training, only after it, or never (none).",
        choices=("none", "during", "after"),
    )
    validation_frequency: int = runtime_option(
        1,
        "Epochs between validations, with --validation-mode during.",
        at_least=1,
        inactive_when=option_is_not("validation_mode", "during"),
    )
    valid_batch_size: int = runtime_option(
        256, "Batch size for validation.", at_least=1, inactive_when=no_validation
    )
    random_weights: bool = validate_option(
        False, "Validate a newly initialized network; `convoy validate` then needs no run."
    )
    repeat: int = validate_option(
        1, "Number of times `convoy validate` repeats the validation.", at_least=1
    )
    latency: bool = validate_option(
        False, "Report the latency of a batch in `convoy validate`: mean and 99th percentile."
    )
    backend: str = validate_option(
        "torch",
        "Inference backend of `convoy validate`: torch, torch.compile (compiled), or ONNX Runtime "
        "(an optional dependency).",
        choices=("torch", "compiled", "onnxruntime"),
    )
    num_inference_thread: int = runtime_option(
        1,
        "Number of threads in `convoy validate` that request predictions concurrently.",
        between=(1, 512),
        available_values=(1,),
    )


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Reports and logging."""

    logs_per_epoch: int | None = runtime_option(
        4,
        "Progress reports per epoch; 0 reports only at the end. --log-freq takes precedence.",
        at_least=0,
    )
    log_freq: int | None = runtime_option(
        None,
        "Updates between progress reports, instead of --logs-per-epoch.",
        at_least=1,
        excludes=Exclusion("logs_per_epoch", "set how often to report"),
    )
    log_dir: str = directory_option(
        "runs", "Parent folder of new run folders.", inactive_when=output_is_set
    )
    name: str | None = directory_option(None, "Name of the run folder.")
    name_suffix: str | None = directory_option(
        None, "Suffix of the name of the run folder.", inactive_when=output_is_set
    )
    progress: str = runtime_option(
        "auto",
        "Progress display. With auto, a live display on a terminal and plain lines elsewhere.",
        choices=("auto", "rich", "plain", "none"),
    )
    logs: bool = runtime_option(True, "Write a run folder.", available_values=(True,))
    disable_metrics: bool = unavailable_switch(
        "Do not compute loss and accuracy for reports, to measure the highest speed."
    )
    analyze_nans: bool = unavailable_switch(
        "Count the NaN values in each checkpoint and send the counts to Weights & Biases.",
        aliases=("--analyse-nans",),
    )
    mlperf_logging: bool = unavailable_switch(
        "Write the events of the MLPerf rules to a separate file."
    )
    profile: bool = unavailable_switch("Write a trace of one update to a file, then stop.")
    profile_compilation: bool = unavailable_switch(
        "Trace the compilation of the network, then stop."
    )
    wandb: bool = unavailable_switch("Send reports to Weights & Biases.")
    wandb_project: str = runtime_option(
        "convoy",
        "Weights & Biases project that receives the reports.",
        available_values=("convoy",),
    )
    wandb_id: str | None = runtime_option(
        None, "Weights & Biases run to continue.", available_values=(None,)
    )
    wandb_weight_histogram: bool = unavailable_switch(
        "Also send histograms of the weights to Weights & Biases."
    )
