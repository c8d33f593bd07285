"""The options for batches, training length, fine-tuning, learning rate, loss and optimizer."""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from convoy.config.option import (
    Exclusion,
    Run,
    condition,
    option,
    option_is,
    option_is_not,
    option_is_unset,
    runtime_option,
)
from convoy.config.sections.precision import no_16_bit_gradients

fine_tune_option = partial(option, inactive_when=option_is_unset("half_res_training"))
step_option = partial(option, inactive_when=option_is_not("lr_schedule", "step"))
polynomial_option = partial(option, inactive_when=option_is_not("lr_schedule", "polynomial"))
step_never_drops = condition(
    lambda run: (
        run.learning_rate.lr_schedule == "step"
        and not (run.learning_rate.lr_epoch_decay or run.learning_rate.lr_share_decay)
    ),
    "with --lr-schedule step without --lr-epoch-decay",
)
step_has_multipliers = condition(
    lambda run: run.learning_rate.lr_schedule == "step" and run.learning_rate.lr_multipliers,
    "with --lr-multipliers",
)
_MOMENTUM_ONLY = ("sgd", "sgd_combined", "lars")  # the momentum buffer is their only state

lars_option = partial(option, inactive_when=option_is_not("optimizer", "lars"))
rmsprop_option = partial(option, inactive_when=option_is_not("optimizer", "rmsprop", "rmsprop_tf"))
lars_skips_decay = condition(
    lambda run: (
        run.optimizer.optimizer == "lars"
        and run.optimizer.lars_weight_decay is None
        and {"beta", "gamma", "bias"} <= set(run.optimizer.lars_skip_list)
        and not run.family.proxy_norm
    ),
    "with --optimizer lars without --lars-weight-decay: --lars-skip-list contains all of them",
)
no_optimizer_state = condition(
    lambda run: run.optimizer.optimizer in _MOMENTUM_ONLY and run.optimizer.momentum == 0,
    "with --momentum 0: there is no optimizer state",
)
fp_exceptions_stop = option_is("enable_fp_exceptions", True)


def step_drops_on_changes(run: Run) -> str | None:
    """A drop waits for the next change of the learning rate; here every drop falls on one."""
    rate = run.learning_rate
    changes_per_epoch = Fraction(str(rate.lr_scheduler_freq))
    if rate.lr_schedule != "step" or not changes_per_epoch or rate.lr_share_decay:
        return None
    drops = [changes_per_epoch * Fraction(str(epoch)) for epoch in rate.lr_epoch_decay]
    waits = any(drop.denominator > 1 for drop in drops)
    return None if waits else "with --lr-schedule step: every drop falls on a learning rate change"


def no_state_and_no_master_weights(run: Run) -> str | None:
    """There is neither optimizer state nor a master copy of 16-bit weights."""
    precision = run.precision
    forced = precision.offload_fp32_weight_copy or precision.force_weight_to_fp32
    copied = precision.precision == "16.32" or (precision.precision == "16.16" and forced)
    return None if copied else no_optimizer_state(run)


def one_micro_batch(run: Run) -> str | None:
    """The mean and sum of one gradient are the same. A fine-tuning phase may have more of them."""
    batch, fine_tune = run.batch, run.fine_tune
    accumulates = fine_tune.half_res_training and fine_tune.fine_tune_gradient_accumulation > 1
    is_single = batch.gradient_accumulation * batch.replicas == 1 and not accumulates
    return "with one micro-batch per update" if is_single else None


def no_gradient_to_scale(run: Run) -> str | None:
    reason = no_16_bit_gradients(run)
    return reason and f"{reason}: there are no 16-bit gradients"


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Batch size."""

    micro_batch_size: int = option(
        32,
        "Batch size of a forward and backward pass on one replica.",
        at_least=1,
        aliases=("--batch-size",),
    )
    gradient_accumulation: int = runtime_option(
        1,
        "Number of micro-batches per replica and optimizer step.",
        between=(1, 65536),
        scaled_by_replicas=True,
    )
    replicas: int = runtime_option(
        1,
        "Number of data-parallel replicas of the network.",
        between=(1, 65536),
        scaled_by_replicas=True,
    )
    device_iterations: int = runtime_option(
        1,
        "Maximum number of updates between checks for stop signals. They are also checked "
        "at every report, validation and checkpoint.",
        at_least=1,
    )


@dataclass(frozen=True, kw_only=True)
class LengthConfig:
    """Training length.

    Of `epoch` and `updates`, the one from the source with higher precedence applies.
    """

    epoch: float | None = option(
        5,
        "Number of epochs to train.",
        above=0,
        aliases=("--epochs",),
        help_flag="--epochs",
        excludes=Exclusion("updates", "set the training length", required=True),
    )
    updates: int | None = option(
        None, "Number of updates (optimizer steps) to train, instead of --epochs.", at_least=1
    )
    stop_after: int | None = runtime_option(
        None,
        "Save a checkpoint and stop after this update (exit code 75). `convoy resume` continues "
        "the run.",
        at_least=1,
        not_resumed=True,
    )
    epochs_before: float = option(
        0,
        "Number of epochs that the initial weights were trained for. Reports and the sample order "
        "continue from there.",
        between=(0, 1e9),
        aliases=("--start-epoch",),
        help_flag="--start-epoch",
    )


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig:
    """Half-resolution training and fine-tuning."""

    half_res_training: bool = option(
        False,
        "Train on smaller images first (5/7 of the size, 160 instead of 224 pixels), then "
        "fine-tune at full size.",
    )
    fine_tune_epoch: int = fine_tune_option(
        0, "Number of fine-tuning epochs.", between=(0, 1_000_000)
    )
    fine_tune_lr: float = fine_tune_option(
        0.25, "Initial learning rate of fine-tuning, with cosine decay.", between=(0, 1e30)
    )
    fine_tune_micro_batch_size: int = fine_tune_option(
        1, "Micro-batch size during fine-tuning.", at_least=1, aliases=("--fine-tune-batch-size",)
    )
    fine_tune_gradient_accumulation: int = runtime_option(
        1,
        "Micro-batches per replica and weight update during fine-tuning.",
        between=(1, 65536),
        scaled_by_replicas=True,
        inactive_when=option_is_unset("half_res_training"),
    )
    fine_tune_first_trainable_layer: str | None = option(
        None,
        "First layer to train; the layers before it keep their weights and norm statistics. With "
        "--half-res-training, this applies to fine-tuning only.",
    )


@dataclass(frozen=True, kw_only=True)
class LearningRateConfig:
    """Learning rate.

    Of `lr` and its exponent, the one from the source with higher precedence applies.
    """

    lr: float | None = option(
        0.1,
        "Base learning rate, which warm-up and the schedule scale.",
        between=(0, 1e30),
        excludes=Exclusion("base_learning_rate_exponent", "set the learning rate", required=True),
    )
    base_learning_rate_exponent: float | None = option(
        None,
        "Set the learning rate to 2^N × samples per update, instead of --lr.",
        between=(-200, 100),
    )
    lr_schedule: str = option(
        "cosine", "Learning rate schedule.", choices=("step", "cosine", "exponential", "polynomial")
    )
    lr_decay: float = option(
        0.5,
        "Multiplicative factor of learning rate decay (gamma in PyTorch): per milestone for step, "
        "per decay step for exponential.",
        above=0,
        at_most=1,
        inactive_when=(
            option_is_not("lr_schedule", "step", "exponential"),
            step_has_multipliers,
            step_never_drops,
        ),
    )
    lr_epoch_decay: tuple[float, ...] = step_option(
        (),
        "Milestones of the step schedule, in epochs.",
        at_least=0,
        excludes=Exclusion("lr_share_decay"),
    )
    lr_share_decay: tuple[float, ...] = step_option(
        (),
        "Milestones of the step schedule, as fractions of the training length.",
        between=(0, 1),
    )
    lr_multipliers: tuple[float, ...] = step_option(
        (),
        "Learning rates of the step schedule as multiples of --lr: the first one, then one per "
        "milestone. Default: powers of --lr-decay.",
        between=(0, 1e30),
    )
    lr_drops: int | None = option(
        None,
        "Number of learning rate changes during training, instead of --lr-scheduler-freq.",
        at_least=1,
        excludes=Exclusion("lr_scheduler_freq", "set when the learning rate changes"),
        inactive_when=step_never_drops,
    )
    lr_scheduler_freq: float = option(
        0,
        "Learning rate changes per epoch; 0 changes it at every update.",
        at_least=0,
        inactive_when=(step_never_drops, step_drops_on_changes),
    )
    warmup_epoch: float = option(0, "Epochs of linear learning rate warm-up.", at_least=0)
    poly_lr_decay_power: float = polynomial_option(
        2.0, "Exponent of the polynomial schedule.", above=0
    )
    poly_lr_end_ratio: float = polynomial_option(
        1e-5,
        "Final learning rate of the polynomial schedule as a fraction of --lr.",
        between=(0, 1),
    )
    abs_end_learning_rate: float | None = polynomial_option(
        None,
        "Final learning rate of the polynomial schedule, instead of --poly-lr-end-ratio.",
        between=(0, 1e30),
        excludes=Exclusion("poly_lr_end_ratio", "set the final learning rate"),
    )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Loss."""

    label_smoothing: float = option(
        0.0,
        "Amount of label smoothing. This fraction of the target is distributed uniformly over the "
        "classes.",
        between=(0, 1),
    )
    label_smoothing_over: str = option(
        "all",
        "Classes that receive the smoothed part of the target: all, or only the incorrect ones "
        "(others).",
        choices=("all", "others"),
        inactive_when=option_is_unset("label_smoothing"),
    )
    loss_scaling: float = option(
        1.0, "Loss scale. Gradients are divided by it before the update.", between=(1e-30, 1e38)
    )
    initial_loss_scaling: float | None = option(
        None,
        "Initial loss scale. It is doubled at regular intervals until it reaches --loss-scaling.",
        between=(1e-30, 1e38),
        inactive_when=option_is(
            "auto_loss_scaling", True, reason="the loss scale starts with --loss-scaling"
        ),
    )
    auto_loss_scaling: bool = option(
        False,
        "Adjust the loss scale automatically: start with --loss-scaling, lower it when 16-bit "
        "gradients are close to overflow, raise it when they underflow.",
        inactive_when=no_gradient_to_scale,
    )
    on_nonfinite: str = runtime_option(
        "stop",
        "What to do if the loss or a gradient is not finite: stop before the update, or skip it.",
        choices=("stop", "skip"),
        inactive_when=fp_exceptions_stop,
    )
    max_skipped: int = runtime_option(
        10,
        "Maximum number of consecutive updates to skip with --on-nonfinite skip; the run stops if "
        "there are more.",
        at_least=0,
        inactive_when=(option_is_not("on_nonfinite", "skip"), fp_exceptions_stop),
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer."""

    optimizer: str = option(
        "sgd",
        "Optimizer. sgd_combined is SGD with a momentum buffer that includes the loss scale; "
        "rmsprop_tf is TensorFlow's RMSprop, with epsilon inside the square root, as in timm.",
        choices=("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars"),
    )
    momentum: float = option(
        0.9,
        "Momentum factor; 0 disables momentum.",
        between=(0, 1),
        inactive_when=option_is("optimizer", "adamw"),
    )
    weight_decay: float = option(5e-4, "Weight decay (L2 penalty).", between=(0, 1e30))
    weight_decay_spares: str = option(
        "vectors",
        "Parameters excluded from weight decay: vectors (norms and biases), norms, or nothing.",
        choices=("vectors", "norms", "nothing"),
        aliases=("--weight-decay-exclude",),
        help_flag="--weight-decay-exclude",
        inactive_when=(option_is("weight_decay", 0), lars_skips_decay),
    )
    rmsprop_decay: float = rmsprop_option(
        0.99,
        "Smoothing constant of RMSprop (alpha in PyTorch).",
        between=(0, 1),
    )
    rmsprop_base_decay_exp: float | None = rmsprop_option(
        None,
        "Set the smoothing constant of RMSprop to 1 − 2^N × samples per update, instead of "
        "--rmsprop-decay.",
        between=(-200, 100),
        excludes=Exclusion("rmsprop_decay", "set the decay"),
    )
    # Above 0 even in 32 bits: a weight whose gradients are all 0 would otherwise become 0 ÷ 0.
    optimizer_eps: float = option(
        1e-8,
        "Epsilon added to the denominator in RMSprop and AdamW.",
        between=(1e-30, 1e30),
        inactive_when=option_is_not("optimizer", "adamw", "rmsprop", "rmsprop_tf"),
    )
    lars_epsilon: float = lars_option(
        0.0, "Epsilon added to the denominator in LARS.", between=(0, 1e30)
    )
    lars_eeta: float = lars_option(0.001, "Trust coefficient of LARS.", between=(0, 1e30))
    lars_weight_decay: float | None = lars_option(
        None,
        "Weight decay inside LARS, of every parameter that LARS scales. Default: --weight-decay, "
        "without the parameters that --weight-decay-spares names.",
        between=(0, 1e30),
    )
    lars_skip_list: tuple[str, ...] = lars_option(
        ("beta", "gamma", "bias"),
        "Parameters that LARS does not scale, given as substrings of parameter names; gamma and "
        "beta are the weights and biases of norms.",
    )
    loss_velocity_scaling_ratio: float = option(
        1.0,
        "Loss scale divided by the scale of the momentum buffer in sgd_combined.",
        above=0,
        at_most=1e30,
        inactive_when=(
            option_is_not("optimizer", "sgd_combined"),
            option_is("momentum", 0, reason="there is no momentum buffer"),
        ),
    )
    optimizer_state_dtype: str = option(
        "float32",
        "Dtype of the optimizer state. With weights, the dtype in which the weights are stored.",
        choices=("float32", "weights", "float16", "bfloat16"),
        inactive_when=no_optimizer_state,
    )
    variable_filter: tuple[str, ...] = option(
        (),
        "Train only parameters whose names contain one of these strings. Norms still update their "
        "running statistics.",
    )
    gradient_mean_reduce_re: tuple[str, ...] = option(
        (),
        "Regular expressions that match whole parameter names. Gradients of these parameters are "
        "divided by the number of micro-batches before they are summed, not after.",
        inactive_when=one_micro_batch,
    )
