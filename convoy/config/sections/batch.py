"""How samples are grouped into updates, how long a run is, and its second phase."""

from dataclasses import dataclass
from functools import partial

from convoy.config.option import Exclusion, free_option, option, without


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How samples are grouped into passes and updates."""

    micro_batch_size: int = option(
        32, "Samples in one forward and backward pass.", at_least=1, also=("--batch-size",)
    )
    gradient_accumulation: int = free_option(
        1,
        "Micro-batches of one replica summed before each weight update.",
        between=(1, 65536),
        jointly=True,
    )
    replicas: int = free_option(
        1, "Copies of the network, each with its own samples.", between=(1, 65536), jointly=True
    )
    device_iterations: int = free_option(
        1,
        "Updates between two returns to the host.",
        at_least=1,
        no_counterpart="updates follow each other without the host, which reads results at "
        "reports only",
    )


@dataclass(frozen=True, kw_only=True)
class LengthConfig:
    """How long the run is. The higher source of `epoch` and `updates` wins."""

    epoch: float | None = option(
        5,
        "Length in epochs.",
        above=0,
        also=("--epochs",),
        excludes=Exclusion("updates", "set the length", needed=True),
    )
    updates: int | None = option(None, "Length in weight updates.", at_least=1)
    stop_after: int | None = free_option(
        None,
        "Save and stop after this update (exit 75); `convoy resume` goes on.",
        at_least=1,
        momentary=True,
    )
    epochs_before: float = option(
        0,
        "Epochs that the first weights were trained for: reports and the order of samples count "
        "on from there.",
        between=(0, 1e9),
    )


fine_tune_option = partial(option, idle=without("half_res_training"))


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig:
    """Training on small images first, then a little on whole ones."""

    half_res_training: bool = option(
        False, "Train on smaller images (160 of 224, 5 of 7 pixels), then fine-tune on whole ones."
    )
    fine_tune_epoch: int = fine_tune_option(0, "Epochs of fine-tuning.", between=(0, 1_000_000))
    fine_tune_lr: float = fine_tune_option(
        0.25, "Learning rate of fine-tuning, falling by a cosine.", between=(0, 1e30)
    )
    fine_tune_micro_batch_size: int = fine_tune_option(
        1, "Micro-batch of fine-tuning.", at_least=1, also=("--fine-tune-batch-size",)
    )
    fine_tune_gradient_accumulation: int = free_option(
        1,
        "Micro-batches of one replica per update of fine-tuning.",
        between=(1, 65536),
        jointly=True,
        idle=without("half_res_training"),
    )
    fine_tune_first_trainable_layer: str | None = option(
        None,
        "First layer that is trained, with --half-res-training in fine-tuning: those before it "
        "keep their weights and statistics.",
    )
