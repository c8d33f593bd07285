"""Ways to make one gradient of many: against float64, and bit for bit however leaves are split."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweeps import sweep
from torch import Tensor, nn

from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import (
    DIVIDED_FIRST,
    REDUCTIONS,
    DividedFirst,
    GradientTree,
    Mean,
    Node,
    Reduction,
    RunningMean,
    fold_nodes,
    make_reduction,
)
from convoy.numerics.precision import BFLOAT16, FLOAT16, FLOAT32, DtypePolicy
from convoy.parallel.replicas import Replicas

Array = npt.NDArray[np.float64]

ELEMENTS = 37  # no multiple of what a CPU takes at once
EPS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11} | {
    torch.bfloat16: 2.0**-8
}
WAYS = (*REDUCTIONS, DIVIDED_FIRST)
in_every_way = pytest.mark.parametrize("way", WAYS)
in_every_type = pytest.mark.parametrize("dtype", list(EPS), ids=str)


def way_of(name: str, micro_batches: int) -> Reduction:
    return make_reduction(DtypePolicy(reduction=name), micro_batches)


def leaves(count: int, seed: int = 0) -> list[Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return [
        torch.randn(ELEMENTS, generator=chance) * 10 ** (item % 4 - 2.0) for item in range(count)
    ]


def grown(
    gradients: Sequence[Tensor], reduction: Reduction, dtype: torch.dtype, first: int = 0
) -> GradientTree:
    weight = nn.Parameter(torch.zeros(len(gradients[0])))
    tree = GradientTree(FlatParameters({"w": weight}), first, dtype, reduction=reduction)
    for gradient in gradients:
        weight.grad = gradient.clone()
        tree.collect()
    return tree


def reduced(gradients: Sequence[Tensor], way: str, dtype: torch.dtype = torch.float32) -> Tensor:
    tree = grown(gradients, way_of(way, len(gradients)), dtype)
    return tree.flat.views(Replicas().reduce(tree))[0]


def in_double(gradients: Sequence[Tensor]) -> Array:
    return np.array([gradient.double().numpy() for gradient in gradients])


@in_every_way
@in_every_type
@sweep("count", range(1, 20))
def test_every_reduction_is_close_to_its_formula(way: str, dtype: torch.dtype, count: int) -> None:
    """Each of log2(n) joins rounds thrice, then comes a division; so do the sums of magnitudes."""
    gradients = leaves(count)
    values = in_double(gradients)
    true = values.sum(0) if way == "sum" else values.sum(0) / count
    sizes = np.abs(values).sum(0) / (1 if way == "sum" else count)
    apart = np.abs(reduced(gradients, way, dtype).double().numpy() - true)

    # Into the 32 bits of the weights at last; the least 16-bit number is 6e-8.
    bound = sizes * (3 * count.bit_length() + 3) * (EPS[dtype] + EPS[torch.float32]) + 4e-7
    assert (apart <= bound).all()


@sweep("count", range(1, 20))
def test_a_running_mean_matches_sequential_averaging(count: int) -> None:
    gradients = leaves(count)
    mean = np.zeros(ELEMENTS)
    for number, item in enumerate(in_double(gradients)):
        mean = mean * (number / (number + 1)) + item / (number + 1)
    found = reduced(gradients, "running-mean", torch.float64).double().numpy()

    np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-7)


def rounded_tree(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Left · l/n + right · r/n, the left the largest power of two that leaves something.

    Products and sums of 16-bit numbers are made in 32 bits, and each is rounded to 16.
    """
    count, dtype = len(parts), parts[0].dtype
    if count == 1:
        return parts[0]
    half = 1 << (count - 1).bit_length() - 1
    wide = np.promote_types(dtype, np.float32)
    left, right = (
        (rounded_tree(some).astype(wide) * wide.type(len(some) / count)).astype(dtype)
        for some in (parts[:half], parts[half:])
    )
    return (left.astype(wide) + right.astype(wide)).astype(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@sweep("count", range(1, 20))
def test_a_running_mean_has_the_bits_of_its_formula(dtype: torch.dtype, count: int) -> None:
    gradients = leaves(count)
    tree = grown(gradients, RunningMean(), dtype)
    found = fold_nodes(tree.nodes(), RunningMean())[:ELEMENTS]
    parts = [gradient.to(dtype).numpy() for gradient in gradients]

    assert np.array_equal(found.numpy(), rounded_tree(parts))


@in_every_way
@in_every_type
@sweep("count", [1, 2, 3, 5, 6, 7, 12, 15])
def test_any_equal_blocks_have_the_bits_of_one_block(
    way: str, dtype: torch.dtype, count: int
) -> None:
    gradients, reduction = leaves(count, seed=count), way_of(way, count)
    full = fold_nodes(grown(gradients, reduction, dtype).nodes(), reduction)
    for size in (item for item in range(1, count + 1) if count % item == 0):
        nodes: list[Node] = []
        for first in range(0, count, size):
            nodes += grown(gradients[first : first + size], reduction, dtype, first).nodes()

        assert torch.equal(fold_nodes(nodes, reduction), full)


@in_every_way
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_any_blocks_have_the_bits_of_one_block(way: str, sizes: list[int]) -> None:
    count = sum(sizes)
    gradients, reduction = leaves(count, seed=1), way_of(way, count)
    full = fold_nodes(grown(gradients, reduction, torch.float16).nodes(), reduction)
    nodes: list[Node] = []
    first = 0
    for size in sizes:
        nodes += grown(gradients[first : first + size], reduction, torch.float16, first).nodes()
        first += size

    assert torch.equal(fold_nodes(nodes, reduction), full)


@sweep("count", [2, 3, 4, 7, 64])
def test_a_16_bit_sum_overflows_where_other_reductions_do_not(count: int) -> None:
    gradients = [torch.full((ELEMENTS,), 40000.0) for _ in range(count)]
    found = {way: reduced(gradients, way, torch.float16) for way in WAYS}

    assert all(bool(found[way].isinf().all()) for way in ("sum", "mean"))
    # A leaf that is divided by no power of two is rounded each time.
    torch.testing.assert_close(found["running-mean"], gradients[0], rtol=2**-9, atol=0)
    torch.testing.assert_close(found[DIVIDED_FIRST], gradients[0], rtol=2**-8, atol=0)


def test_a_leaf_is_divided_before_it_is_rounded() -> None:
    """70,000 is infinite in 16 bits, a quarter of it is not."""
    gradients = [torch.full((ELEMENTS,), value) for value in (70000.0, 10000.0, 10000.0, 10000.0)]

    assert bool(reduced(gradients, "running-mean", torch.float16).isinf().all())
    # Quarters are exact to 16 of 17,504, and so is the mean.
    found = reduced(gradients, DIVIDED_FIRST, torch.float16)
    assert bool(((found - 25000).abs() <= 16).all())


def test_a_leaf_for_a_wider_accumulator_is_divided_in_the_wider_dtype() -> None:
    (gradient,) = leaves(1)
    leaf = DividedFirst(3).prepare_leaf(gradient, torch.float64)

    assert np.array_equal(leaf.numpy(), gradient.double().numpy() / 3)


@in_every_way
def test_the_result_of_one_micro_batch_is_its_gradient(way: str) -> None:
    (gradient,) = leaves(1)

    assert torch.equal(reduced([gradient], way), gradient)


@in_every_type
def test_running_mean_is_the_default_only_in_float16(dtype: torch.dtype) -> None:
    chosen = make_reduction(DtypePolicy(accumulator=dtype), 4)

    assert type(chosen) is (RunningMean if dtype == torch.float16 else Mean)


def test_accumulators_have_the_dtype_of_the_stored_weight_by_default() -> None:
    kinds = [
        DtypePolicy(param=FLOAT16),
        DtypePolicy(param=BFLOAT16),
        DtypePolicy(FLOAT16, FLOAT16, torch.float32),
    ]

    assert [item.accumulator_dtype for item in (DtypePolicy(), *kinds)] == [
        *(torch.float32, torch.float16, torch.bfloat16, torch.float32),
    ]
    assert type(make_reduction(DtypePolicy(param=FLOAT16, compute=FLOAT32), 4)) is RunningMean


def test_a_configured_reduction_is_used_with_every_dtype() -> None:
    for sums in (torch.float16, torch.float32):
        ways = {
            "mean": Mean,
            "sum": Reduction,
            "running-mean": RunningMean,
            DIVIDED_FIRST: DividedFirst,
        }
        for name, way in ways.items():
            assert type(make_reduction(DtypePolicy(accumulator=sums, reduction=name), 4)) is way


@in_every_way
def test_merging_does_not_modify_the_right_side(way: str) -> None:
    left, right = leaves(2)
    before = right.clone()
    way_of(way, 2).merge([left], [right], (1, 1))

    assert torch.equal(right, before)


@in_every_way
def test_a_result_may_be_written_in_place_or_elsewhere(way: str) -> None:
    (total,) = leaves(1)
    for micro_batches in (1, 5):
        elsewhere, reduction = torch.full_like(total, torch.nan), way_of(way, micro_batches)
        reduction.finalize(total, micro_batches, elsewhere)
        place = total.clone()

        assert reduction.finalize(place, micro_batches, place) is place
        assert torch.equal(place, elsewhere)
        assert torch.equal(place, total / micro_batches if way == "mean" else total)
