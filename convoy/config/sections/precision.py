"""The number types of arithmetic, weights and sums, and how they are rounded."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import free_option, option


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """In which numbers is computed and kept."""

    precision: str = option(
        "32.32",
        "Bits of the arithmetic . bits of the weights.",
        choices=("16.16", "16.32", "32.32"),
    )
    half_type: str = option(
        "float16",
        "The type that has 16 bits.",
        choices=("float16", "bfloat16"),
        idle=inactive.no_16_bits,
    )
    half_arithmetic: str = option(
        "auto",
        "Arithmetic of 16 bits by the device itself, or as if: 32-bit arithmetic whose results are "
        "rounded; auto: by the device if it is an accelerator.",
        choices=("auto", "native", "emulated"),
        idle=inactive.no_16_bit_arithmetic,
    )
    half_partial: bool = option(
        False,
        "Partial sums in 16 bits inside convolutions and products: as CUDA has them, or with "
        "--half-arithmetic emulated as if, rounded after every 16 channels.",
        idle=(inactive.no_16_bit_arithmetic, inactive.partial_sums_need_cuda),
    )
    enable_stochastic_rounding: bool = option(
        False,
        "Round new weights and optimizer state of 16 bits up or down by chance.",
        idle=inactive.no_16_bits_kept,
    )
    enable_fp_exceptions: bool = free_option(
        False,
        "Stop at the first value of a layer that is not finite, even if no gradient shows it.",
    )
    saturate_on_overflow: bool = option(
        False,
        "Clip 16-bit gradients at the largest value instead of letting them overflow.",
        idle=inactive.no_16_bit_gradients,
    )
    force_weight_to_fp16: tuple[str, ...] = option(
        (),
        "Parts of names of weights kept and used in 16 bits.",
        idle=inactive.all_weights_are_16_bits,
    )
    force_weight_to_fp32: tuple[str, ...] = option(
        (),
        "Parts of names of weights kept in 32 bits.",
        only_with={"precision": ("16.16",)},
        idle=inactive.all_weights_have_a_copy,
    )
    offload_fp32_weight_copy: bool = option(
        False,
        "Keep a 32-bit copy of 16-bit weights with the optimizer's state: the true weights.",
        only_with={"precision": ("16.16",)},
    )
