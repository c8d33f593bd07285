"""The options for dtypes, 16-bit arithmetic and rounding."""

from dataclasses import dataclass

from convoy.config.option import Run, condition, option, option_is, option_is_not, runtime_option

no_16_bit_arithmetic = option_is("precision", "32.32")
all_weights_are_16_bits = condition(
    lambda run: run.precision.precision == "16.16" and not run.precision.offload_fp32_weight_copy,
    "with --precision 16.16: all weights have 16 bits",
)
all_weights_have_master_copies = condition(
    lambda run: run.precision.offload_fp32_weight_copy,
    "with --offload-fp32-weight-copy: all weights have fp32 copies",
)


def _forces_16_bits(run: Run) -> bool:
    """Whether options force some weights or the optimizer state to 16 bits."""
    half_state = run.optimizer.optimizer_state_dtype in ("float16", "bfloat16")
    return bool(run.precision.force_weight_to_fp16) or half_state


def no_16_bit_gradients(run: Run) -> str | None:
    return None if run.precision.force_weight_to_fp16 else no_16_bit_arithmetic(run)


def no_16_bits(run: Run) -> str | None:
    return None if _forces_16_bits(run) else no_16_bit_arithmetic(run)


def nothing_stored_in_16_bits(run: Run) -> str | None:
    precision = run.precision
    is_half = precision.precision == "16.16"
    if _forces_16_bits(run) or (is_half and not precision.offload_fp32_weight_copy):
        return None
    with_copies = " and --offload-fp32-weight-copy" if is_half else ""
    words = f"with --precision {precision.precision}{with_copies}"
    return f"{words}: weights and optimizer state are stored in 32 bits"


def partial_sums_need_cuda(run: Run) -> str | None:
    """Emulation is slow, so it has to be requested with --half-arithmetic emulated."""
    device = run.device.device
    if run.precision.half_arithmetic == "emulated" or device == "cuda":
        return None
    words = "unless the device is CUDA" if device == "auto" else f"with --device {device}"
    return f"{words}; --half-arithmetic emulated rounds partial sums on any device"


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Precision."""

    precision: str = option(
        "32.32",
        "Bits of the arithmetic and of the stored weights. 16.32 computes in 16 bits and stores "
        "weights in 32 bits.",
        choices=("16.16", "16.32", "32.32"),
    )
    half_type: str = option(
        "float16",
        "16-bit floating-point type.",
        choices=("float16", "bfloat16"),
        inactive_when=no_16_bits,
    )
    half_arithmetic: str = option(
        "auto",
        "16-bit arithmetic: native, or emulated (fp32 with rounded results). With auto, native on "
        "accelerators.",
        choices=("auto", "native", "emulated"),
        inactive_when=no_16_bit_arithmetic,
    )
    half_partial: bool = option(
        False,
        "Accumulate convolutions and matrix products in 16 bits: natively on CUDA, or with "
        "--half-arithmetic emulated by rounding after every 16 channels.",
        inactive_when=(no_16_bit_arithmetic, partial_sums_need_cuda),
    )
    enable_stochastic_rounding: bool = option(
        False,
        "Use stochastic rounding when storing updated 16-bit weights and optimizer state.",
        inactive_when=nothing_stored_in_16_bits,
    )
    enable_fp_exceptions: bool = runtime_option(
        False,
        "Stop at the first layer that produces a non-finite value, even if all gradients are "
        "finite.",
    )
    saturate_on_overflow: bool = option(
        False,
        "Clip 16-bit gradients to the largest finite value instead of letting them overflow.",
        inactive_when=no_16_bit_gradients,
    )
    force_weight_to_fp16: tuple[str, ...] = option(
        (),
        "Parameters to store and use in 16 bits, given as substrings of parameter names.",
        inactive_when=all_weights_are_16_bits,
    )
    force_weight_to_fp32: tuple[str, ...] = option(
        (),
        "Parameters to store in 32 bits, given as substrings of parameter names.",
        inactive_when=(option_is_not("precision", "16.16"), all_weights_have_master_copies),
    )
    offload_fp32_weight_copy: bool = option(
        False,
        "Keep fp32 master copies of 16-bit weights with the optimizer state.",
        inactive_when=option_is_not("precision", "16.16"),
    )
