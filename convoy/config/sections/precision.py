"""The number types of arithmetic, weights and sums, and how they are rounded."""

from dataclasses import dataclass

from convoy.config.option import Run, free_option, option, unless, when, where

no_16_bit_arithmetic = where("precision", "32.32")
all_weights_are_16_bits = when(
    lambda run: run.precision.precision == "16.16" and not run.precision.offload_fp32_weight_copy,
    "with --precision 16.16: every weight has 16 bits",
)
all_weights_have_a_copy = when(
    lambda run: run.precision.offload_fp32_weight_copy,
    "beside --offload-fp32-weight-copy: all weights are kept so",
)


def _keeps_16_bits(run: Run) -> bool:
    """Whether some weights or the optimizer's state have 16 bits in any precision."""
    half_state = run.optimizer.optimizer_state_dtype in ("float16", "bfloat16")
    return bool(run.precision.force_weight_to_fp16) or half_state


def no_16_bit_gradients(run: Run) -> str | None:
    return None if run.precision.force_weight_to_fp16 else no_16_bit_arithmetic(run)


def no_16_bits(run: Run) -> str | None:
    return None if _keeps_16_bits(run) else no_16_bit_arithmetic(run)


def no_16_bits_kept(run: Run) -> str | None:
    precision = run.precision
    is_half = precision.precision == "16.16"
    if _keeps_16_bits(run) or (is_half and not precision.offload_fp32_weight_copy):
        return None
    copied = " and --offload-fp32-weight-copy" if is_half else ""
    return f"with --precision {precision.precision}{copied}: weights and state are kept in 32 bits"


def partial_sums_need_cuda(run: Run) -> str | None:
    """Emulated ones take much longer: only who asks for them gets them."""
    device = run.device.device
    if run.precision.half_arithmetic == "emulated" or device == "cuda":
        return None
    where = "unless the device is CUDA" if device == "auto" else f"with --device {device}"
    return f"{where}; --half-arithmetic emulated rounds partial sums anywhere"


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """In which numbers is computed and kept."""

    precision: str = option(
        "32.32",
        "Bits of the arithmetic . bits of the weights.",
        choices=("16.16", "16.32", "32.32"),
    )
    half_type: str = option(
        "float16", "The type that has 16 bits.", choices=("float16", "bfloat16"), idle=no_16_bits
    )
    half_arithmetic: str = option(
        "auto",
        "Arithmetic of 16 bits by the device itself, or as if: 32-bit arithmetic whose results are "
        "rounded; auto: by the device if it is an accelerator.",
        choices=("auto", "native", "emulated"),
        idle=no_16_bit_arithmetic,
    )
    half_partial: bool = option(
        False,
        "Partial sums in 16 bits inside convolutions and products: as CUDA has them, or with "
        "--half-arithmetic emulated as if, rounded after every 16 channels.",
        idle=(no_16_bit_arithmetic, partial_sums_need_cuda),
    )
    enable_stochastic_rounding: bool = option(
        False,
        "Round new weights and optimizer state of 16 bits up or down by chance.",
        idle=no_16_bits_kept,
    )
    enable_fp_exceptions: bool = free_option(
        False,
        "Stop at the first value of a layer that is not finite, even if no gradient shows it.",
    )
    saturate_on_overflow: bool = option(
        False,
        "Clip 16-bit gradients at the largest value instead of letting them overflow.",
        idle=no_16_bit_gradients,
    )
    force_weight_to_fp16: tuple[str, ...] = option(
        (), "Parts of names of weights kept and used in 16 bits.", idle=all_weights_are_16_bits
    )
    force_weight_to_fp32: tuple[str, ...] = option(
        (),
        "Parts of names of weights kept in 32 bits.",
        idle=(unless("precision", "16.16"), all_weights_have_a_copy),
    )
    offload_fp32_weight_copy: bool = option(
        False,
        "Keep a 32-bit copy of 16-bit weights with the optimizer's state: the true weights.",
        idle=unless("precision", "16.16"),
    )
