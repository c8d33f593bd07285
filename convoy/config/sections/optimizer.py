"""Options of the optimizer, the loss and the arithmetic."""

from dataclasses import dataclass

from convoy.config.fields import above, at_least, cuda_only, not_yet, one_of, option


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What an update does with a gradient."""

    optimizer: str = not_yet(
        option(
            "sgd",
            "Update rule.",
            one_of("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars"),
        )
    )
    momentum: float = option(0.9, "Momentum; 0 is plain gradient descent.", at_least(0, at_most=1))
    weight_decay: float = option(5e-4, "L2 factor.", at_least(0, at_most=1e30))
    weight_decay_spares: str = not_yet(
        option(
            "vectors",
            "Parameters without decay: all vectors (norms and biases), norms alone, or nothing.",
            one_of("vectors", "norms", "nothing"),
        )
    )
    rmsprop_decay: float = not_yet(
        option(0.99, "Share of the old mean square kept by rmsprop.", at_least(0, at_most=1))
    )
    rmsprop_base_decay_exp: float | None = not_yet(
        option(
            None,
            "N of a decay of 1 − 2^N × samples per update; instead of --rmsprop-decay.",
            at_least(-200, at_most=100),
        )
    )
    optimizer_eps: float = not_yet(
        option(1e-8, "Added to the denominator by rmsprop and adamw.", at_least(0))
    )
    lars_epsilon: float = not_yet(option(0.0, "Added to the denominator by LARS.", at_least(0)))
    lars_eeta: float = not_yet(option(0.001, "Trust coefficient of LARS.", at_least(0)))
    lars_weight_decay: float | None = not_yet(
        option(None, "Decay inside LARS; unset is --weight-decay.", at_least(0))
    )
    lars_skip_list: tuple[str, ...] = not_yet(
        option(("beta", "gamma", "bias"), "Parts of names that LARS does not scale.")
    )
    variable_filter: tuple[str, ...] = not_yet(
        option((), "Train only parameters whose name holds one of these.")
    )
    gradient_mean_reduce_re: tuple[str, ...] = not_yet(
        option((), "Patterns of parameters whose gradients are divided before they are summed.")
    )
    loss_velocity_scaling_ratio: float = not_yet(
        option(1.0, "Loss scale ÷ scale of the velocity in sgd_combined.", above(0))
    )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is made small."""

    label_smoothing: float = option(
        0.0, "Share of the target spread evenly over all classes.", at_least(0, at_most=1)
    )
    loss_scaling: float = not_yet(
        option(1.0, "Factor of the loss, taken out again before the update.", above(0))
    )
    initial_loss_scaling: float | None = not_yet(
        option(None, "First loss scale, doubled on the way to --loss-scaling.", above(0))
    )
    auto_loss_scaling: bool = not_yet(option(False, "Loss scale that follows the gradients."))


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """In which numbers is computed and kept."""

    precision: str = not_yet(
        option(
            "32.32",
            "Bits of the arithmetic . bits of the weights.",
            one_of("16.16", "16.32", "32.32"),
        )
    )
    half_partial: bool = cuda_only(
        option(False, "Partial sums in 16 bits inside convolutions and products."),
        "lets sums of 16-bit products be taken in 16 bits",
    )
    enable_stochastic_rounding: bool = not_yet(
        option(False, "Round 16-bit weights up or down by chance.")
    )
    enable_fp_exceptions: bool = not_yet(
        option(False, "Stop at the first value that is not finite, and name it.", free=True)
    )
    saturate_on_overflow: bool = not_yet(
        option(False, "Clip 16-bit gradients at ±65504 instead of letting them overflow.")
    )
    force_weight_to_fp16: tuple[str, ...] = not_yet(
        option((), "Parts of names of weights kept in 16 bits.")
    )
    force_weight_to_fp32: tuple[str, ...] = not_yet(
        option((), "Parts of names of weights kept in 32 bits.")
    )
    offload_fp32_weight_copy: bool = not_yet(
        option(False, "Keep the 32-bit copy of 16-bit weights with the optimizer's state.")
    )


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig:
    """Training on small images first, then a little on whole ones."""

    half_res_training: bool = option(
        False, "Train on smaller images (160 of 224, 5 of 7 pixels), then fine-tune on whole ones."
    )
    fine_tune_epoch: int = option(0, "Epochs of fine-tuning.", at_least(0, at_most=1_000_000))
    fine_tune_lr: float = option(
        0.25, "Learning rate of fine-tuning, falling by a cosine.", at_least(0, at_most=1e30)
    )
    fine_tune_micro_batch_size: int = option(
        1, "Micro-batch of fine-tuning.", at_least(1), also=("--fine-tune-batch-size",)
    )
    fine_tune_gradient_accumulation: int = option(
        1,
        "Micro-batches of one replica per update of fine-tuning.",
        at_least(1, at_most=65536),
        free=True,
    )
    fine_tune_first_trainable_layer: str | None = option(
        None,
        "First layer that is trained, with --half-res-training in fine-tuning: those before it "
        "keep their weights and statistics.",
    )
