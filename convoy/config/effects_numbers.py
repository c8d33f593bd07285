"""Options of the arithmetic that can do nothing in a configuration, and why."""

from convoy.config.effects_keeping import Idle
from convoy.config.schema import RunConfig


def everything_has_32_bits(run: RunConfig) -> str | None:
    return "with --precision 32.32" if run.precision.precision == "32.32" else None


def no_gradient_has_16_bits(run: RunConfig) -> str | None:
    return None if run.precision.force_weight_to_fp16 else everything_has_32_bits(run)


def nothing_has_16_bits(run: RunConfig) -> str | None:
    if run.precision.force_weight_to_fp16 or _state_has_16_bits(run):
        return None
    return everything_has_32_bits(run)


def nothing_is_kept_in_16_bits(run: RunConfig) -> str | None:
    wish = run.precision
    if wish.force_weight_to_fp16 or _state_has_16_bits(run):
        return None
    if wish.precision == "16.16" and not wish.offload_fp32_weight_copy:
        return None
    copied = " and --offload-fp32-weight-copy" if wish.precision == "16.16" else ""
    return f"with --precision {wish.precision}{copied}: weights and state are kept in 32 bits"


def _state_has_16_bits(run: RunConfig) -> bool:
    return run.optimizer.optimizer_state_dtype in ("float16", "bfloat16")


def sums_are_the_devices(run: RunConfig) -> str | None:
    """As if, they take much longer: only who asks for it that way gets them so."""
    how, device = run.precision.half_arithmetic, run.device.device
    if how == "emulated" or device == "cuda":
        return None
    where = "unless the device is CUDA" if device == "auto" else f"with --device {device}"
    return f"{where}; --half-arithmetic emulated rounds partial sums anywhere"


def the_precision_is_not(*precisions: str) -> Idle:
    def idle(run: RunConfig) -> str | None:
        precision = run.precision.precision
        return None if precision in precisions else f"with --precision {precision}"

    return idle


def every_weight_has_16_bits(run: RunConfig) -> str | None:
    wish = run.precision
    is_so = wish.precision == "16.16" and not wish.offload_fp32_weight_copy
    return "with --precision 16.16: every weight has 16 bits" if is_so else None


def there_is_a_copy(run: RunConfig) -> str | None:
    copied = run.precision.offload_fp32_weight_copy
    return "beside --offload-fp32-weight-copy: all weights are kept so" if copied else None


# In the order of the option table. The first reason that holds is told.
IDLE_NUMBERS: dict[str, tuple[Idle, ...]] = {
    "half_type": (nothing_has_16_bits,),
    "half_arithmetic": (everything_has_32_bits,),
    "half_partial": (everything_has_32_bits, sums_are_the_devices),
    "enable_stochastic_rounding": (nothing_is_kept_in_16_bits,),
    "saturate_on_overflow": (no_gradient_has_16_bits,),
    "force_weight_to_fp16": (every_weight_has_16_bits,),
    "force_weight_to_fp32": (the_precision_is_not("16.16"), there_is_a_copy),
    "offload_fp32_weight_copy": (the_precision_is_not("16.16"),),
}
