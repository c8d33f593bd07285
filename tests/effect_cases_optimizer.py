"""Options of the optimizer that are given in vain, and the reason that is told."""

from typing import Any

NO_MOMENTUM = "with --momentum 0: there is no state"

OF_OPTIMIZERS: list[tuple[dict[str, Any], str, str]] = [
    ({"momentum": 0.5, "optimizer": "adamw"}, "--momentum", "with --optimizer adamw"),
    (
        {"weight_decay_spares": "nothing", "weight_decay": 0.0},
        "--weight-decay-spares",
        "with --weight-decay 0",
    ),
    (
        {"weight_decay_spares": "norms", "optimizer": "lars"},
        "--weight-decay-spares",
        "with --optimizer lars without --lars-weight-decay: --lars-skip-list says it",
    ),
    ({"rmsprop_decay": 0.5}, "--rmsprop-decay", "with --optimizer sgd"),
    (
        {"rmsprop_base_decay_exp": -14.0, "optimizer": "adamw"},
        "--rmsprop-base-decay-exp",
        "with --optimizer adamw",
    ),
    ({"optimizer_eps": 0.1, "optimizer": "lars"}, "--optimizer-eps", "with --optimizer lars"),
    ({"lars_epsilon": 0.1}, "--lars-epsilon", "with --optimizer sgd"),
    ({"lars_eeta": 0.1, "optimizer": "rmsprop"}, "--lars-eeta", "with --optimizer rmsprop"),
    ({"lars_weight_decay": 0.1}, "--lars-weight-decay", "with --optimizer sgd"),
    ({"lars_skip_list": ("fc",)}, "--lars-skip-list", "with --optimizer sgd"),
    (
        {"loss_velocity_scaling_ratio": 2.0},
        "--loss-velocity-scaling-ratio",
        "with --optimizer sgd",
    ),
    (
        {"loss_velocity_scaling_ratio": 2.0, "optimizer": "sgd_combined", "momentum": 0.0},
        "--loss-velocity-scaling-ratio",
        "with --momentum 0: there is no velocity",
    ),
    *(
        (
            {"optimizer_state_dtype": "bfloat16", "momentum": 0.0, "optimizer": optimizer},
            "--optimizer-state-dtype",
            NO_MOMENTUM,
        )
        for optimizer in ("sgd", "sgd_combined", "lars")
    ),
    (
        {"offload_optimizer": True, "momentum": 0.0, "precision": "16.16"},
        "--offload-optimizer",
        NO_MOMENTUM,
    ),
    (
        {"offload_optimizer": True, "momentum": 0.0, "optimizer": "lars"},
        "--offload-optimizer",
        NO_MOMENTUM,
    ),
]

# Each of these does something.
WITH_EFFECT: list[dict[str, Any]] = [
    {"optimizer": "lars", "lars_epsilon": 0.1, "lars_eeta": 0.1, "lars_skip_list": ("fc",)},
    {"optimizer": "lars", "lars_weight_decay": 0.1, "weight_decay_spares": "norms"},
    {"optimizer": "rmsprop", "rmsprop_decay": 0.5, "optimizer_eps": 0.1, "momentum": 0.5},
    {"optimizer": "rmsprop_tf", "rmsprop_base_decay_exp": -14.0, "optimizer_eps": 0.1},
    {"optimizer": "adamw", "optimizer_eps": 0.1, "weight_decay_spares": "nothing"},
    {"optimizer": "sgd_combined", "loss_velocity_scaling_ratio": 2.0, "momentum": 0.5},
    {"optimizer": "rmsprop", "momentum": 0.0, "offload_optimizer": True},
    {"optimizer": "rmsprop_tf", "momentum": 0.0, "optimizer_state_dtype": "float16"},
    {"optimizer": "adamw", "replicas": 2, "enable_optimizer_rts": True},
    {"momentum": 0.0, "precision": "16.32", "offload_optimizer": True},
    {
        "momentum": 0.0,
        "precision": "16.16",
        "force_weight_to_fp32": ("fc",),
        "replicas": 2,
        "enable_optimizer_rts": True,
    },
]
