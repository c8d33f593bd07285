"""Options of the optimizer, the loss and the arithmetic."""

from dataclasses import dataclass

from convoy.config.fields import above, at_least, one_of, option


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What an update does with a gradient."""

    optimizer: str = option(
        "sgd",
        "Update rule.",
        one_of("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars"),
    )
    momentum: float = option(0.9, "Momentum; 0 is plain gradient descent.", at_least(0, at_most=1))
    weight_decay: float = option(5e-4, "L2 factor.", at_least(0, at_most=1e30))
    weight_decay_spares: str = option(
        "vectors",
        "Parameters without decay: all vectors (norms and biases), norms alone, or nothing.",
        one_of("vectors", "norms", "nothing"),
    )
    rmsprop_decay: float = option(
        0.99, "Share of the old mean square kept by rmsprop.", at_least(0, at_most=1)
    )
    rmsprop_base_decay_exp: float | None = option(
        None,
        "N of a decay of 1 − 2^N × samples per update; instead of --rmsprop-decay.",
        at_least(-200, at_most=100),
    )
    # Above 0 even in 32 bits: a weight whose gradient is always 0 would become 0 ÷ 0.
    optimizer_eps: float = option(
        1e-8, "Added to the denominator by rmsprop and adamw.", at_least(1e-30, at_most=1e30)
    )
    lars_epsilon: float = option(
        0.0, "Added to the denominator by LARS.", at_least(0, at_most=1e30)
    )
    lars_eeta: float = option(0.001, "Trust coefficient of LARS.", at_least(0, at_most=1e30))
    lars_weight_decay: float | None = option(
        None, "Decay inside LARS; unset, --weight-decay acts there.", at_least(0, at_most=1e30)
    )
    lars_skip_list: tuple[str, ...] = option(
        ("beta", "gamma", "bias"),
        "Parts of names that LARS does not scale; gamma and beta are scales and offsets of norms.",
    )
    loss_velocity_scaling_ratio: float = option(
        1.0, "Loss scale ÷ scale of the velocity in sgd_combined.", above(0, at_most=1e30)
    )
    optimizer_state_dtype: str = option(
        "float32",
        "Numbers of the optimizer's state; weights: those in which the weights are kept.",
        one_of("float32", "weights", "float16", "bfloat16"),
    )
    variable_filter: tuple[str, ...] = option(
        (), "Train only parameters whose name holds one of these; norms still measure."
    )
    gradient_mean_reduce_re: tuple[str, ...] = option(
        (),
        "Patterns of whole names of parameters whose gradients are divided by their number before "
        "they are summed.",
    )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is made small."""

    label_smoothing: float = option(
        0.0, "Share of the target spread evenly over classes.", at_least(0, at_most=1)
    )
    label_smoothing_over: str = option(
        "all",
        "Classes that --label-smoothing spreads over: all, or the others than the right one.",
        one_of("all", "others"),
    )
    loss_scaling: float = option(
        1.0,
        "Factor of the loss, taken out again before the update.",
        at_least(1e-30, at_most=1e38),
    )
    initial_loss_scaling: float | None = option(
        None,
        "First loss scale, doubled in even steps of the run on the way to --loss-scaling.",
        at_least(1e-30, at_most=1e38),
    )
    auto_loss_scaling: bool = option(
        False,
        "Loss scale that begins with --loss-scaling, falls when 16-bit gradients come near "
        "overflow and grows when they vanish.",
    )
    on_nonfinite: str = option(
        "stop",
        "When a gradient or a loss is not finite: stop before the update, or skip it.",
        one_of("stop", "skip"),
        free=True,
    )
    max_skipped: int = option(
        10,
        "Updates in a row that --on-nonfinite skip may skip; one more stops.",
        at_least(0),
        free=True,
    )


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """In which numbers is computed and kept."""

    precision: str = option(
        "32.32",
        "Bits of the arithmetic . bits of the weights.",
        one_of("16.16", "16.32", "32.32"),
    )
    half_type: str = option("float16", "The type that has 16 bits.", one_of("float16", "bfloat16"))
    half_arithmetic: str = option(
        "auto",
        "Arithmetic of 16 bits by the device itself, or as if: 32-bit arithmetic whose results are "
        "rounded; auto: by the device if it is an accelerator.",
        one_of("auto", "native", "emulated"),
    )
    half_partial: bool = option(
        False,
        "Partial sums in 16 bits inside convolutions and products: as CUDA has them, or with "
        "--half-arithmetic emulated as if, rounded after every 16 channels.",
    )
    enable_stochastic_rounding: bool = option(
        False, "Round new weights and optimizer state of 16 bits up or down by chance."
    )
    enable_fp_exceptions: bool = option(
        False,
        "Stop at the first value of a layer that is not finite, even if no gradient shows it.",
        free=True,
    )
    saturate_on_overflow: bool = option(
        False, "Clip 16-bit gradients at the largest value instead of letting them overflow."
    )
    force_weight_to_fp16: tuple[str, ...] = option(
        (), "Parts of names of weights kept and used in 16 bits."
    )
    force_weight_to_fp32: tuple[str, ...] = option((), "Parts of names of weights kept in 32 bits.")
    offload_fp32_weight_copy: bool = option(
        False, "Keep a 32-bit copy of 16-bit weights with the optimizer's state: the true weights."
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
