"""Checkpoints: where they are written, how often, and averages of them."""

from dataclasses import dataclass
from functools import partial

from convoy.config.option import Condition, free_option, option, when, where


def no_checkpoints(but: str = "") -> Condition:
    return when(lambda run: not run.checkpoint.saves, f"with --ckpts-per-epoch 0{but}")


no_average = where("weight_avg_strategy", "none", why="`convoy average` takes it")
nothing_to_average = when(
    lambda run: not run.checkpoint.saves and run.average.weight_avg_strategy != "none",
    "with --ckpts-per-epoch 0: a run averages its checkpoints, and there are none",
)
fewer_are_kept = when(
    lambda run: 0 < run.checkpoint.keep_last < run.average.weight_avg_n,
    "above --keep-last {run.checkpoint.keep_last}",
)
ema_is_never_used = when(
    lambda run: not run.checkpoint.saves and run.validation.validation_mode == "none",
    "with --ckpts-per-epoch 0 and --validation-mode none: it is neither kept nor measured",
)


folder_option = partial(free_option, fixed="a run stays in its folder")
first_weights_option = partial(option, fixed="a run goes on with its own weights")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is written to go on from."""

    checkpoint_output_path: str | None = folder_option(
        None, "Run folder; unset makes a new one in --log-dir.", also=("--output",)
    )
    init_path: str | None = first_weights_option(
        None,
        "Begin with the weights of this run (its newest sound checkpoint) or checkpoint; "
        "the training itself begins anew.",
    )
    pretrained: str | None = first_weights_option(
        None,
        "Begin with weights in the names of torchvision or timm: a file, or hf:OWNER/NAME; "
        "without a value those published for the model.",
    )
    ckpts_per_epoch: int = free_option(1, "Checkpoints per epoch; 0 writes none.", at_least=0)
    epochs_per_ckpt: int = free_option(
        0,
        "Epochs from one checkpoint to the next; 0 leaves it to --ckpts-per-epoch.",
        at_least=0,
        also=("--checkpoint-save-freq",),
    )
    ckpt_epochs_offset: int | None = free_option(
        None,
        "Epochs before the first checkpoint; unset: with --epochs-per-ckpt so many that the last "
        "one falls on the end.",
        at_least=0,
        idle=no_checkpoints(),
    )
    keep_last: int = free_option(
        0,
        "Newest checkpoints kept; 0 keeps all.",
        at_least=0,
        also=("--max-ckpts-to-keep",),
        idle=no_checkpoints(", unless the run is stopped"),
    )
    on_save_error: str = free_option(
        "stop",
        "When a checkpoint cannot be written.",
        choices=("stop", "continue"),
        idle=no_checkpoints(": what a stop saves must be written"),
    )

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints at all, beside that of a stop."""
        return self.ckpts_per_epoch > 0 or self.epochs_per_ckpt > 0


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """One set of weights out of many: checkpoints, when training ends or by `convoy average`, or
    those of every update."""

    weight_avg_strategy: str = free_option(
        "none",
        "Average of the checkpoints that a run makes at its end; `convoy average` takes the mean "
        "where none is chosen.",
        choices=("none", "mean", "exponential"),
        idle=nothing_to_average,
    )
    weight_avg_n: int = free_option(
        -1,
        "Newest checkpoints to average; -1 (or 0) takes all.",
        at_least=-1,
        also=("--weight-avg-N",),
        idle=(no_average, no_checkpoints(), fewer_are_kept),
    )
    weight_avg_exp_decay: float = free_option(
        0.99,
        "Share of the old average kept at each checkpoint.",
        above=0,
        at_most=0.999999,
        idle=(no_average, no_checkpoints(), where("weight_avg_strategy", "mean")),
    )
    norm_statistics: str = free_option(
        "recompute",
        "Running statistics of the average: recompute them over the training data, "
        "average them too, or keep the newest checkpoint's.",
        choices=("recompute", "average", "keep"),
        idle=(no_average, no_checkpoints()),
    )
    ema_decay: float = free_option(
        0.0,
        "Share of the old average kept at each update, by an average of the weights that is "
        "measured beside them and kept at the end; 0: none.",
        between=(0, 0.999999),
        idle=ema_is_never_used,
    )
