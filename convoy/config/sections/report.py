"""When accuracy is measured, and what a run reports: intervals, names, display, trackers."""

from dataclasses import dataclass
from functools import partial

from convoy.config.option import Exclusion, free_option, unless, when, where
from convoy.config.sections.checkpoint import folder_option

no_validation = where("validation_mode", "none", why="`convoy validate` takes it")
folder_is_given = when(
    lambda run: run.checkpoint.checkpoint_output_path is not None, "beside --output"
)


only_for_validate = when(lambda _: True, "on training: `convoy validate` takes it")
validate_option = partial(free_option, idle=only_for_validate)
pending_switch = partial(free_option, False, ready=(False,))  # this version cannot switch it on


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """When accuracy is measured."""

    validation_mode: str = free_option(
        "after", "During training, only after it, or never.", choices=("none", "during", "after")
    )
    validation_frequency: int = free_option(
        1,
        "Epochs between validations in mode during.",
        at_least=1,
        idle=unless("validation_mode", "during"),
    )
    valid_batch_size: int = free_option(
        256, "Samples in one validation pass.", at_least=1, idle=no_validation
    )
    random_weights: bool = validate_option(
        False, "Measure a fresh network; `convoy validate` then needs no run."
    )
    repeat: int = validate_option(
        1, "Times `convoy validate` measures the same weights.", at_least=1
    )
    latency: bool = validate_option(
        False, "Tell how long `convoy validate` takes for a batch: mean and 99th percentile."
    )
    backend: str = validate_option(
        "torch",
        "What computes the answers of `convoy validate`: torch, torch.compile, or ONNX Runtime "
        "(an extra).",
        choices=("torch", "compiled", "onnxruntime"),
    )
    num_inference_thread: int = free_option(
        1,
        "Threads of `convoy validate` that ask for answers side by side.",
        between=(1, 512),
        ready=(1,),
    )


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What a person and a program see."""

    logs_per_epoch: int | None = free_option(
        4, "Reports per epoch; 0 reports only the end. Unset by --log-freq.", at_least=0
    )
    log_freq: int | None = free_option(
        None,
        "Updates from one report to the next, instead of --logs-per-epoch.",
        at_least=1,
        excludes=Exclusion("logs_per_epoch", "say how often"),
    )
    log_dir: str = folder_option("runs", "Parent of new run folders.", idle=folder_is_given)
    name: str | None = folder_option(None, "Name of the run folder.")
    name_suffix: str | None = folder_option(
        None, "Comes behind the name of the run folder, given or found.", idle=folder_is_given
    )
    progress: str = free_option(
        "auto",
        "Live display on a terminal, plain lines elsewhere.",
        choices=("auto", "rich", "plain", "none"),
    )
    logs: bool = free_option(True, "Write a run folder at all.", ready=(True,))
    disable_metrics: bool = pending_switch(
        "Compute no loss and accuracy for reports, to see the highest speed."
    )
    analyze_nans: bool = pending_switch(
        "Count the values of each checkpoint that are no numbers, and send them to "
        "Weights & Biases.",
        also=("--analyse-nans",),
    )
    mlperf_logging: bool = pending_switch(
        "Write the events of the MLPerf rules to a file of their own."
    )
    profile: bool = pending_switch("Trace one update into a file, then stop.")
    profile_compilation: bool = pending_switch("Trace how the network is made ready, then stop.")
    wandb: bool = pending_switch("Send reports to Weights & Biases.")
    wandb_project: str = free_option(
        "convoy", "Project of Weights & Biases that gets the reports.", ready=("convoy",)
    )
    wandb_id: str | None = free_option(
        None, "Run of Weights & Biases to go on with.", ready=(None,)
    )
    wandb_weight_histogram: bool = pending_switch(
        "Send histograms of the weights to Weights & Biases, too."
    )
