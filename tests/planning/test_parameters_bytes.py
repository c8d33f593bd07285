"""Bytes per element for each precision, native or emulated."""

import pytest

from convoy.config.schema import build_config
from convoy.planning.parameters import ElementBytes, element_bytes


@pytest.mark.parametrize(
    ("state_dtype", "precision", "has_fp32_copy", "size"),
    [
        ("float32", "32.32", False, 4 + 4),
        ("float32", "16.16", False, 4 + 4),
        ("float16", "32.32", False, 2 + 2),
        ("bfloat16", "16.32", False, 2 + 2 + 4),
        ("weights", "32.32", False, 4 + 4),
        ("weights", "16.32", False, 4 + 4 + 4),
        ("weights", "16.16", False, 2 + 2),
        ("weights", "16.16", True, 4 + 4 + 4),
    ],
)
def test_state_bytes_include_slots_and_the_master_copy(
    state_dtype: str, precision: str, has_fp32_copy: bool, size: int
) -> None:
    options = {"optimizer_state_dtype": state_dtype, "precision": precision, "optimizer": "adamw"}
    config = build_config(options | {"offload_fp32_weight_copy": has_fp32_copy})

    assert element_bytes(config).state == size


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (4, 4)),
        ({"precision": "16.32"}, (4, 4)),
        ({"precision": "16.16"}, (4, 2)),
        ({"precision": "16.16", "accumulator_dtype": "float64"}, (4, 8)),
        ({"precision": "16.16", "device": "cuda"}, (2, 2)),
        ({"precision": "16.16", "device": "cuda", "half_arithmetic": "emulated"}, (4, 2)),
        ({"precision": "16.32", "half_arithmetic": "native"}, (2, 4)),
        ({"precision": "32.32", "half_arithmetic": "native"}, (4, 4)),
    ],
)
def test_activations_and_accumulators_have_the_bytes_of_their_dtypes(
    values: dict[str, str], expected: tuple[int, int]
) -> None:
    actual = element_bytes(build_config({**values, "momentum": 0.0}))

    assert actual == ElementBytes(*expected, state=4 if values.get("precision") == "16.32" else 0)
