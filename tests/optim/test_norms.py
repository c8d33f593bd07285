"""Norms in float64: sums of squares of rows, added pairwise."""

import numpy as np
import pytest
import torch
from support.small_weights import noise

from convoy.optim.update_rules import euclidean_norms, pairwise_sum, row_sums_of_squares


def test_a_row_is_the_sum_of_sixteen_squares() -> None:
    values = noise((48,), 3)
    expected = (values.double().numpy() ** 2).reshape(3, 16).sum(1)

    assert np.abs(row_sums_of_squares(values).numpy() - expected).max() < 1e-12


def test_a_row_has_the_same_bits_in_any_shard() -> None:
    values = noise((16 * 40,), 3)
    full = row_sums_of_squares(values)

    for rows in range(1, 40):
        parts = [row_sums_of_squares(values[: 16 * rows]), row_sums_of_squares(values[16 * rows :])]
        assert torch.equal(torch.cat(parts), full)


def test_the_pairwise_sum_adds_the_second_half_to_the_first() -> None:
    parts = torch.tensor([1e16, 1.0, -1e16, 1.0, 1.0], dtype=torch.float64)
    # [1e16 + 1, 1 + 1, -1e16] with the first 1 lost, then [1e16 - 1e16, 2], then 0 + 2

    assert float(pairwise_sum(parts)) == 2.0


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64, 1000])
def test_a_norm_is_the_root_of_the_sum_of_squares(rows: int) -> None:
    weight, gradient = noise((rows, 16), 1), noise((rows, 16), 2)
    row_sums = torch.stack(
        [row_sums_of_squares(weight.flatten()), row_sums_of_squares(gradient.flatten())], 1
    )
    actual = euclidean_norms(row_sums)

    assert actual.weight == pytest.approx(np.linalg.norm(weight.double().numpy()), rel=1e-14)
    assert actual.gradient == pytest.approx(np.linalg.norm(gradient.double().numpy()), rel=1e-14)


def test_squares_that_overflow_fp32_are_counted() -> None:
    assert row_sums_of_squares(torch.full((16,), 1e-30)).item() == pytest.approx(16e-60, rel=1e-6)
    assert row_sums_of_squares(torch.full((16,), 1e30)).item() == pytest.approx(16e60, rel=1e-6)
