"""The training loss, its scale, and what happens to values that are not finite."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import free_option, option


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is made small."""

    label_smoothing: float = option(
        0.0, "Share of the target spread evenly over classes.", at_least=0, at_most=1
    )
    label_smoothing_over: str = option(
        "all",
        "Classes that --label-smoothing spreads over: all, or the others than the right one.",
        choices=("all", "others"),
        needs="label_smoothing",
    )
    loss_scaling: float = option(
        1.0, "Factor of the loss, taken out again before the update.", at_least=1e-30, at_most=1e38
    )
    initial_loss_scaling: float | None = option(
        None,
        "First loss scale, doubled in even steps of the run on the way to --loss-scaling.",
        at_least=1e-30,
        at_most=1e38,
        idle=inactive.where("auto_loss_scaling", True, why="it begins with --loss-scaling"),
    )
    auto_loss_scaling: bool = option(
        False,
        "Loss scale that begins with --loss-scaling, falls when 16-bit gradients come near "
        "overflow and grows when they vanish.",
        idle=inactive.no_gradient_to_scale,
    )
    on_nonfinite: str = free_option(
        "stop",
        "When a gradient or a loss is not finite: stop before the update, or skip it.",
        choices=("stop", "skip"),
        idle=inactive.fp_exceptions_stop,
    )
    max_skipped: int = free_option(
        10,
        "Updates in a row that --on-nonfinite skip may skip; one more stops.",
        at_least=0,
        only_with={"on_nonfinite": ("skip",)},
        idle=inactive.fp_exceptions_stop,
    )
