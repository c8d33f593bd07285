"""The training loss with its scale, and what an update does with a gradient."""

from dataclasses import dataclass
from functools import partial

from convoy.config.option import Exclusion, Run, free_option, option, unless, when, where, without
from convoy.config.sections.precision import no_16_bit_gradients

_ONLY_MOMENTUM = ("sgd", "sgd_combined", "lars")  # the velocity is all that these keep

lars_option = partial(option, idle=unless("optimizer", "lars"))
not_rmsprop = unless("optimizer", "rmsprop", "rmsprop_tf")
lars_skips_decay = when(
    lambda run: run.optimizer.optimizer == "lars" and run.optimizer.lars_weight_decay is None,
    "with --optimizer lars without --lars-weight-decay: --lars-skip-list says it",
)
no_optimizer_state = when(
    lambda run: run.optimizer.optimizer in _ONLY_MOMENTUM and run.optimizer.momentum == 0,
    "with --momentum 0: there is no state",
)
fp_exceptions_stop = where("enable_fp_exceptions", True)


def no_state_and_no_copy(run: Run) -> str | None:
    """Neither state, nor the true weights of such as are used in fewer bits."""
    precision = run.precision
    forced = precision.offload_fp32_weight_copy or precision.force_weight_to_fp32
    copied = precision.precision == "16.32" or (precision.precision == "16.16" and forced)
    return None if copied else no_optimizer_state(run)


def one_micro_batch(run: Run) -> str | None:
    """One gradient is its own mean and sum, unless a second phase has more."""
    batch, later = run.batch, run.fine_tune
    more = later.half_res_training and later.fine_tune_gradient_accumulation > 1
    is_one = batch.gradient_accumulation * batch.replicas == 1 and not more
    return "with one micro-batch in an update" if is_one else None


def no_gradient_to_scale(run: Run) -> str | None:
    why = no_16_bit_gradients(run)
    return why and f"{why}: no gradient has 16 bits"


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is made small."""

    label_smoothing: float = option(
        0.0, "Share of the target spread evenly over classes.", between=(0, 1)
    )
    label_smoothing_over: str = option(
        "all",
        "Classes that --label-smoothing spreads over: all, or the others than the right one.",
        choices=("all", "others"),
        idle=without("label_smoothing"),
    )
    loss_scaling: float = option(
        1.0, "Factor of the loss, taken out again before the update.", between=(1e-30, 1e38)
    )
    initial_loss_scaling: float | None = option(
        None,
        "First loss scale, doubled in even steps of the run on the way to --loss-scaling.",
        between=(1e-30, 1e38),
        idle=where("auto_loss_scaling", True, why="it begins with --loss-scaling"),
    )
    auto_loss_scaling: bool = option(
        False,
        "Loss scale that begins with --loss-scaling, falls when 16-bit gradients come near "
        "overflow and grows when they vanish.",
        idle=no_gradient_to_scale,
    )
    on_nonfinite: str = free_option(
        "stop",
        "When a gradient or a loss is not finite: stop before the update, or skip it.",
        choices=("stop", "skip"),
        idle=fp_exceptions_stop,
    )
    max_skipped: int = free_option(
        10,
        "Updates in a row that --on-nonfinite skip may skip; one more stops.",
        at_least=0,
        idle=(unless("on_nonfinite", "skip"), fp_exceptions_stop),
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What an update does with a gradient."""

    optimizer: str = option(
        "sgd",
        "Update rule.",
        choices=("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars"),
    )
    momentum: float = option(
        0.9,
        "Momentum; 0 is plain gradient descent.",
        between=(0, 1),
        idle=where("optimizer", "adamw"),
    )
    weight_decay: float = option(5e-4, "L2 factor.", between=(0, 1e30))
    weight_decay_spares: str = option(
        "vectors",
        "Parameters without decay: all vectors (norms and biases), norms alone, or nothing.",
        choices=("vectors", "norms", "nothing"),
        idle=(where("weight_decay", 0), lars_skips_decay),
    )
    rmsprop_decay: float = option(
        0.99, "Share of the old mean square kept by rmsprop.", between=(0, 1), idle=not_rmsprop
    )
    rmsprop_base_decay_exp: float | None = option(
        None,
        "N of a decay of 1 − 2^N × samples per update; instead of --rmsprop-decay.",
        between=(-200, 100),
        excludes=Exclusion("rmsprop_decay", "set the decay"),
        idle=not_rmsprop,
    )
    # Above 0 even in 32 bits: a weight whose gradient is always 0 would become 0 ÷ 0.
    optimizer_eps: float = option(
        1e-8,
        "Added to the denominator by rmsprop and adamw.",
        between=(1e-30, 1e30),
        idle=unless("optimizer", "adamw", "rmsprop", "rmsprop_tf"),
    )
    lars_epsilon: float = lars_option(0.0, "Added to the denominator by LARS.", between=(0, 1e30))
    lars_eeta: float = lars_option(0.001, "Trust coefficient of LARS.", between=(0, 1e30))
    lars_weight_decay: float | None = lars_option(
        None, "Decay inside LARS; unset, --weight-decay acts there.", between=(0, 1e30)
    )
    lars_skip_list: tuple[str, ...] = lars_option(
        ("beta", "gamma", "bias"),
        "Parts of names that LARS does not scale; gamma and beta are scales and offsets of norms.",
    )
    loss_velocity_scaling_ratio: float = option(
        1.0,
        "Loss scale ÷ scale of the velocity in sgd_combined.",
        above=0,
        at_most=1e30,
        idle=(
            unless("optimizer", "sgd_combined"),
            where("momentum", 0, why="there is no velocity"),
        ),
    )
    optimizer_state_dtype: str = option(
        "float32",
        "Numbers of the optimizer's state; weights: those in which the weights are kept.",
        choices=("float32", "weights", "float16", "bfloat16"),
        idle=no_optimizer_state,
    )
    variable_filter: tuple[str, ...] = option(
        (), "Train only parameters whose name holds one of these; norms still measure."
    )
    gradient_mean_reduce_re: tuple[str, ...] = option(
        (),
        "Patterns of whole names of parameters whose gradients are divided by their number before "
        "they are summed.",
        idle=one_micro_batch,
    )
