"""The gradient tree against an explicit pairwise sum, bit for bit, for every small count."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from convoy.numerics.gradients import GradientTree
from convoy.plan.memory import partial_sums

SHAPES = ((4, 3, 3, 3), (7,), (2, 5))


def leaves(count: int, seed: int = 0) -> list[list[Tensor]]:
    """One gradient per weight for each micro-batch, of very different sizes."""
    chance = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(shape, generator=chance) * 10 ** (index % 5 - 2) for shape in SHAPES]
        for index in range(count)
    ]


def pairwise(parts: Sequence[Tensor]) -> Tensor:
    """Left half + right half, the left one the largest power of two that leaves something."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return pairwise(parts[:half]) + pairwise(parts[half:])


def expected(gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [pairwise(column) / len(gradients) for column in zip(*gradients, strict=True)]


def tree() -> GradientTree:
    return GradientTree([nn.Parameter(torch.zeros(shape)) for shape in SHAPES])


def grow(gradients: Sequence[Sequence[Tensor]], into: GradientTree | None = None) -> GradientTree:
    grown = into or tree()
    for one in gradients:
        for weight, gradient in zip(grown.weights, one, strict=True):
            weight.grad = gradient.clone()
        grown.collect()
    return grown


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("count", range(1, 34))
def test_the_mean_is_the_explicit_pairwise_sum_divided_once(count: int):
    gradients = leaves(count)

    assert same(grow(gradients).mean(), expected(gradients))


def test_five_micro_batches_are_added_as_drawn():
    a, b, c, d, e = (torch.tensor(value) for value in (1e8, 1.0, -1e8, 1.0, 0.5))
    single = GradientTree([nn.Parameter(torch.tensor(0.0))])
    for gradient in (a, b, c, d, e):
        single.weights[0].grad = gradient.clone()
        single.collect()
    (mean,) = single.mean()

    assert torch.equal(mean, (((a + b) + (c + d)) + e) / 5)


def test_another_order_gives_other_bits():
    gradients = leaves(16)
    one_by_one = [sum(column[1:], column[0]) / 16 for column in zip(*gradients, strict=True)]

    assert not same(grow(gradients).mean(), one_by_one)
    torch.testing.assert_close(grow(gradients).mean(), one_by_one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", [1, 2, 4, 8])
@pytest.mark.parametrize("blocks", range(1, 9))
def test_trees_of_blocks_joined_in_order_are_the_tree_of_all(block: int, blocks: int):
    gradients = leaves(block * blocks, seed=block)
    parts = [gradients[first : first + block] for first in range(0, block * blocks, block)]
    joined = grow([grow(part).mean() for part in parts])

    assert same(joined.mean(), grow(gradients).mean())


def test_blocks_of_another_size_are_not_the_tree_of_all():
    gradients = leaves(12)
    joined = grow([grow(gradients[first : first + 3]).mean() for first in range(0, 12, 3)])

    assert not same(joined.mean(), grow(gradients).mean())


def test_the_mean_of_equal_gradients_is_that_gradient():
    for count in (1, 2, 3, 5, 6, 7, 12):
        gradients = [[torch.full(shape, 3.0) for shape in SHAPES]] * count

        assert same(grow(gradients).mean(), gradients[0])


def test_one_micro_batch_is_not_copied():
    single = tree()
    given = [torch.ones(shape) for shape in SHAPES]
    for weight, gradient in zip(single.weights, given, strict=True):
        weight.grad = gradient
    single.collect()

    assert all(one is other for one, other in zip(single.mean(), given, strict=True))


def test_collecting_empties_the_weights():
    grown = grow(leaves(3))

    assert all(weight.grad is None for weight in grown.weights)


def test_a_tree_is_empty_after_its_mean():
    grown = grow(leaves(5, seed=1))
    grown.mean()
    gradients = leaves(3, seed=2)

    assert same(grow(gradients, into=grown).mean(), expected(gradients))


def test_an_empty_tree_has_no_mean():
    with pytest.raises(AssertionError, match="at least one micro-batch"):
        tree().mean()


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_cleared_tree_forgets_its_micro_batches(count: int):
    grown = grow(leaves(count, seed=1))
    grown.clear()
    gradients = leaves(3, seed=2)

    assert same(grow(gradients, into=grown).mean(), expected(gradients))


@pytest.mark.parametrize("count", range(1, 34))
def test_the_tree_never_holds_more_gradients_than_the_plan_says(count: int):
    grown = tree()
    most = 0
    for gradient in leaves(count):
        waiting = len(grown._partials)
        grow([gradient], into=grown)
        most = max(most, waiting + 1)

    assert most == partial_sums(count)
