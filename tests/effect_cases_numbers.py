"""Options of the arithmetic, given in vain and not in vain."""

from typing import Any

_HALF: dict[str, Any] = {"precision": "16.16"}
_IN_32 = "with --precision 32.32"
_KEPT = "weights and state are kept in 32 bits"

OF_NUMBERS: list[tuple[dict[str, Any], str, str]] = [
    ({"full_precision_norm": True}, "--full-precision-norm", _IN_32),
    (
        {"full_precision_norm": True, "norm_type": "none", **_HALF},
        "--full-precision-norm",
        "with --norm-type none",
    ),
    ({"half_type": "bfloat16"}, "--half-type", _IN_32),
    ({"half_arithmetic": "emulated"}, "--half-arithmetic", _IN_32),
    ({"half_partial": True}, "--half-partial", _IN_32),
    ({"half_partial": True, **_HALF}, "--half-partial", "unless the device is CUDA; --half-ari"),
    (
        {"half_partial": True, "device": "cpu", "half_arithmetic": "native", **_HALF},
        "--half-partial",
        "with --device cpu; --half-arithmetic emulated rounds partial sums anywhere",
    ),
    ({"saturate_on_overflow": True}, "--saturate-on-overflow", _IN_32),
    (
        {"enable_stochastic_rounding": True},
        "--enable-stochastic-rounding",
        f"with --precision 32.32: {_KEPT}",
    ),
    (
        {"enable_stochastic_rounding": True, "precision": "16.32"},
        "--enable-stochastic-rounding",
        f"with --precision 16.32: {_KEPT}",
    ),
    (
        {"enable_stochastic_rounding": True, "offload_fp32_weight_copy": True, **_HALF},
        "--enable-stochastic-rounding",
        f"with --precision 16.16 and --offload-fp32-weight-copy: {_KEPT}",
    ),
    (
        {"force_weight_to_fp16": ("fc",), **_HALF},
        "--force-weight-to-fp16",
        "with --precision 16.16: every weight has 16 bits",
    ),
    ({"force_weight_to_fp32": ("fc",)}, "--force-weight-to-fp32", _IN_32),
    (
        {"force_weight_to_fp32": ("fc",), "offload_fp32_weight_copy": True, **_HALF},
        "--force-weight-to-fp32",
        "beside --offload-fp32-weight-copy: all weights are kept so",
    ),
    (
        {"offload_fp32_weight_copy": True, "precision": "16.32"},
        "--offload-fp32-weight-copy",
        "with --precision 16.32",
    ),
]

# Each of these does something.
NUMBERS_WITH_EFFECT: list[dict[str, Any]] = [
    {
        "full_precision_norm": True,
        "half_type": "bfloat16",
        "half_partial": True,
        "device": "cuda",
        **_HALF,
    },
    {"half_partial": True, "half_arithmetic": "emulated", **_HALF},
    {"half_arithmetic": "native", "saturate_on_overflow": True, "precision": "16.32"},
    {"enable_stochastic_rounding": True, **_HALF},
    {"enable_stochastic_rounding": True, "optimizer_state_dtype": "float16"},
    {"half_type": "bfloat16", "force_weight_to_fp16": ("fc",)},
    {"force_weight_to_fp32": ("fc",), **_HALF},
    {"force_weight_to_fp16": ("fc",), "offload_fp32_weight_copy": True, **_HALF},
    {"offload_optimizer": True, "momentum": 0.0, "precision": "16.32"},
    {"offload_optimizer": True, "momentum": 0.0, "offload_fp32_weight_copy": True, **_HALF},
]
