"""Float formats against torch and NumPy."""

import numpy as np
import pytest
import torch

from convoy.numerics.precision import BFLOAT16, FLOAT16, FLOAT32, FLOAT_FORMATS, FloatFormat


@pytest.mark.parametrize("float_format", FLOAT_FORMATS.values(), ids=lambda item: item.name)
def test_formats_match_finfo_of_torch(float_format: FloatFormat):
    finfo = torch.finfo(float_format.dtype)

    assert float_format.max_value == finfo.max
    assert float_format.smallest_normal == finfo.smallest_normal
    assert 2.0**-float_format.fraction_bits == finfo.eps


def test_rounding_to_nearest_matches_numpy():
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(3)).mul_(1e-3)
    expected = values.numpy().astype(np.float16).astype(np.float32)

    assert FLOAT16.round_nearest(values).numpy().tolist() == expected.tolist()


def test_ties_are_rounded_to_even():
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8])  # between two values of bfloat16

    assert BFLOAT16.round_nearest(ties).tolist() == [1.0, 1 + 2.0**-6]


def test_fp32_values_are_not_rounded():
    values = torch.randn(10)

    assert FLOAT32.round_nearest(values) is values


def test_saturation_clamps_infinities():
    saturated = FLOAT16.saturate(torch.tensor([1e9, -torch.inf, 3.0]))

    assert saturated.tolist() == [65504.0, -65504.0, 3.0]
