"""What an update does with a gradient."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import Exclusion, option

LARS = {"optimizer": ("lars",)}
RMSPROP = {"optimizer": ("rmsprop", "rmsprop_tf")}


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
        at_least=0,
        at_most=1,
        idle=inactive.where("optimizer", "adamw"),
    )
    weight_decay: float = option(5e-4, "L2 factor.", at_least=0, at_most=1e30)
    weight_decay_spares: str = option(
        "vectors",
        "Parameters without decay: all vectors (norms and biases), norms alone, or nothing.",
        choices=("vectors", "norms", "nothing"),
        idle=(inactive.where("weight_decay", 0), inactive.lars_skips_decay),
    )
    rmsprop_decay: float = option(
        0.99,
        "Share of the old mean square kept by rmsprop.",
        at_least=0,
        at_most=1,
        only_with=RMSPROP,
    )
    rmsprop_base_decay_exp: float | None = option(
        None,
        "N of a decay of 1 − 2^N × samples per update; instead of --rmsprop-decay.",
        at_least=-200,
        at_most=100,
        excludes=Exclusion("rmsprop_decay", "set the decay"),
        only_with=RMSPROP,
    )
    # Above 0 even in 32 bits: a weight whose gradient is always 0 would become 0 ÷ 0.
    optimizer_eps: float = option(
        1e-8,
        "Added to the denominator by rmsprop and adamw.",
        at_least=1e-30,
        at_most=1e30,
        only_with={"optimizer": ("adamw", "rmsprop", "rmsprop_tf")},
    )
    lars_epsilon: float = option(
        0.0, "Added to the denominator by LARS.", at_least=0, at_most=1e30, only_with=LARS
    )
    lars_eeta: float = option(
        0.001, "Trust coefficient of LARS.", at_least=0, at_most=1e30, only_with=LARS
    )
    lars_weight_decay: float | None = option(
        None,
        "Decay inside LARS; unset, --weight-decay acts there.",
        at_least=0,
        at_most=1e30,
        only_with=LARS,
    )
    lars_skip_list: tuple[str, ...] = option(
        ("beta", "gamma", "bias"),
        "Parts of names that LARS does not scale; gamma and beta are scales and offsets of norms.",
        only_with=LARS,
    )
    loss_velocity_scaling_ratio: float = option(
        1.0,
        "Loss scale ÷ scale of the velocity in sgd_combined.",
        above=0,
        at_most=1e30,
        only_with={"optimizer": ("sgd_combined",)},
        idle=inactive.where("momentum", 0, why="there is no velocity"),
    )
    optimizer_state_dtype: str = option(
        "float32",
        "Numbers of the optimizer's state; weights: those in which the weights are kept.",
        choices=("float32", "weights", "float16", "bfloat16"),
        idle=inactive.no_optimizer_state,
    )
    variable_filter: tuple[str, ...] = option(
        (), "Train only parameters whose name holds one of these; norms still measure."
    )
    gradient_mean_reduce_re: tuple[str, ...] = option(
        (),
        "Patterns of whole names of parameters whose gradients are divided by their number before "
        "they are summed.",
        idle=inactive.one_micro_batch,
    )
