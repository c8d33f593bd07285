"""Options of the sums of gradients: given in vain, and of use."""

from typing import Any

Values = dict[str, Any]

ONE = "with one micro-batch in an update"
TWO_PHASES: Values = {
    "half_res_training": True,
    "fine_tune_epoch": 1,
    "fine_tune_first_trainable_layer": "fc",
    "weight_avg_strategy": "mean",
}

OF_SUMS: list[tuple[Values, str, str]] = [
    ({"gradient_mean_reduce_re": (".*",)}, "--gradient-mean-reduce-re", ONE),
    ({"gradient_reduction": "running-mean"}, "--gradient-reduction", ONE),
    ({"gradient_reduction": "sum", **TWO_PHASES}, "--gradient-reduction", ONE),
]

OF_USE: list[Values] = [
    {"gradient_reduction": "sum", "gradient_accumulation": 2},
    {"gradient_reduction": "running-mean", "gradient_mean_reduce_re": ("fc.*",), "replicas": 2},
    {"accumulator_dtype": "float16", "accumulator_dtype_rules": ("fc.*=float32",)},
    {"gradient_reduction": "sum", **TWO_PHASES, "fine_tune_gradient_accumulation": 2},
]
