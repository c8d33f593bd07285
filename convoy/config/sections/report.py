"""What a run reports: intervals, names, display, trackers."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import Exclusion, free_option


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
    log_dir: str = free_option(
        "runs",
        "Parent of new run folders.",
        idle=inactive.folder_is_given,
        fixed="a run stays in its folder",
    )
    name: str | None = free_option(
        None, "Name of the run folder.", fixed="a run stays in its folder"
    )
    name_suffix: str | None = free_option(
        None,
        "Comes behind the name of the run folder, given or found.",
        idle=inactive.folder_is_given,
        fixed="a run stays in its folder",
    )
    progress: str = free_option(
        "auto",
        "Live display on a terminal, plain lines elsewhere.",
        choices=("auto", "rich", "plain", "none"),
    )
    logs: bool = free_option(True, "Write a run folder at all.", ready=(True,))
    disable_metrics: bool = free_option(
        False, "Compute no loss and accuracy for reports, to see the highest speed.", ready=(False,)
    )
    analyze_nans: bool = free_option(
        False,
        "Count the values of each checkpoint that are no numbers, and send them to "
        "Weights & Biases.",
        also=("--analyse-nans",),
        ready=(False,),
    )
    mlperf_logging: bool = free_option(
        False, "Write the events of the MLPerf rules to a file of their own.", ready=(False,)
    )
    profile: bool = free_option(False, "Trace one update into a file, then stop.", ready=(False,))
    profile_compilation: bool = free_option(
        False, "Trace how the network is made ready, then stop.", ready=(False,)
    )
    wandb: bool = free_option(False, "Send reports to Weights & Biases.", ready=(False,))
    wandb_project: str = free_option(
        "convoy", "Project of Weights & Biases that gets the reports.", ready=("convoy",)
    )
    wandb_id: str | None = free_option(
        None, "Run of Weights & Biases to go on with.", ready=(None,)
    )
    wandb_weight_histogram: bool = free_option(
        False, "Send histograms of the weights to Weights & Biases, too.", ready=(False,)
    )
