"""Gradient reductions against float64, with the same bits for any split of the leaves."""

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

ELEMENTS = 37  # not a multiple of the vector width of a CPU
EPS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11} | {
    torch.bfloat16: 2.0**-8
}
ALL_REDUCTIONS = (*REDUCTIONS, DIVIDED_FIRST)
all_reductions = pytest.mark.parametrize("name", ALL_REDUCTIONS)
all_dtypes = pytest.mark.parametrize("dtype", list(EPS), ids=str)


def reduction_of(name: str, micro_batches: int) -> Reduction:
    return make_reduction(DtypePolicy(reduction=name), micro_batches)


def leaves(count: int, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(ELEMENTS, generator=rng) * 10 ** (item % 4 - 2.0) for item in range(count)]


def collect(
    gradients: Sequence[Tensor], reduction: Reduction, dtype: torch.dtype, first: int = 0
) -> GradientTree:
    weight = nn.Parameter(torch.zeros(len(gradients[0])))
    tree = GradientTree(FlatParameters({"w": weight}), first, dtype, reduction=reduction)
    for gradient in gradients:
        weight.grad = gradient.clone()
        tree.collect()
    return tree


def reduce(gradients: Sequence[Tensor], name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    tree = collect(gradients, reduction_of(name, len(gradients)), dtype)
    return tree.flat.views(Replicas().reduce(tree))[0]


def to_double(gradients: Sequence[Tensor]) -> Array:
    return np.array([gradient.double().numpy() for gradient in gradients])


@all_reductions
@all_dtypes
@sweep("count", range(1, 20))
def test_every_reduction_is_close_to_its_formula(name: str, dtype: torch.dtype, count: int) -> None:
    """Each of log2(n) merges rounds three times, and the division once more."""
    gradients = leaves(count)
    values = to_double(gradients)
    exact = values.sum(0) if name == "sum" else values.sum(0) / count
    magnitudes = np.abs(values).sum(0) / (1 if name == "sum" else count)
    difference = np.abs(reduce(gradients, name, dtype).double().numpy() - exact)

    # The result is rounded to float32; the smallest float16 is 6e-8.
    bound = magnitudes * (3 * count.bit_length() + 3) * (EPS[dtype] + EPS[torch.float32]) + 4e-7
    assert (difference <= bound).all()


@sweep("count", range(1, 20))
def test_a_running_mean_matches_sequential_averaging(count: int) -> None:
    gradients = leaves(count)
    mean = np.zeros(ELEMENTS)
    for number, item in enumerate(to_double(gradients)):
        mean = mean * (number / (number + 1)) + item / (number + 1)
    found = reduce(gradients, "running-mean", torch.float64).double().numpy()

    np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-7)


def rounded_tree(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Left · l/n + right · r/n, where l is the largest power of two below n.

    Products and sums of 16-bit numbers are computed in 32 bits and rounded to 16.
    """
    count, dtype = len(parts), parts[0].dtype
    if count == 1:
        return parts[0]
    half = 1 << (count - 1).bit_length() - 1
    wide = np.promote_types(dtype, np.float32)
    left, right = (
        (rounded_tree(half_parts).astype(wide) * wide.type(len(half_parts) / count)).astype(dtype)
        for half_parts in (parts[:half], parts[half:])
    )
    return (left.astype(wide) + right.astype(wide)).astype(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@sweep("count", range(1, 20))
def test_a_running_mean_has_the_bits_of_its_formula(dtype: torch.dtype, count: int) -> None:
    gradients = leaves(count)
    tree = collect(gradients, RunningMean(), dtype)
    found = fold_nodes(tree.nodes(), RunningMean())[:ELEMENTS]
    parts = [gradient.to(dtype).numpy() for gradient in gradients]

    assert np.array_equal(found.numpy(), rounded_tree(parts))


@all_reductions
@all_dtypes
@sweep("count", [1, 2, 3, 5, 6, 7, 12, 15])
def test_any_equal_blocks_have_the_bits_of_one_block(
    name: str, dtype: torch.dtype, count: int
) -> None:
    gradients, reduction = leaves(count, seed=count), reduction_of(name, count)
    full = fold_nodes(collect(gradients, reduction, dtype).nodes(), reduction)
    for size in (item for item in range(1, count + 1) if count % item == 0):
        nodes: list[Node] = []
        for first in range(0, count, size):
            nodes += collect(gradients[first : first + size], reduction, dtype, first).nodes()

        assert torch.equal(fold_nodes(nodes, reduction), full)


@all_reductions
@sweep("replicas", [1, 2, 3, 4])
def test_the_sum_of_prescaled_blocks_is_the_result(name: str, replicas: int) -> None:
    """An all-reduce adds the blocks of the replicas in any order."""
    count = 3 * replicas
    gradients, reduction = leaves(count), reduction_of(name, count)
    total = torch.zeros(0)
    for first in range(0, count, 3):
        tree = collect(gradients[first : first + 3], reduction, torch.float64, first)
        node = reduction.prescale(fold_nodes(tree.nodes(), reduction), replicas)
        total = node if first == 0 else total + node
    expected = reduce(gradients, name, torch.float64)
    found = reduction.finalize(total, count, total)[:ELEMENTS].float()

    torch.testing.assert_close(found, expected)


@all_reductions
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_any_blocks_have_the_bits_of_one_block(name: str, sizes: list[int]) -> None:
    count = sum(sizes)
    gradients, reduction = leaves(count, seed=1), reduction_of(name, count)
    full = fold_nodes(collect(gradients, reduction, torch.float16).nodes(), reduction)
    nodes: list[Node] = []
    first = 0
    for size in sizes:
        nodes += collect(gradients[first : first + size], reduction, torch.float16, first).nodes()
        first += size

    assert torch.equal(fold_nodes(nodes, reduction), full)


@sweep("count", [2, 3, 4, 7, 64])
def test_a_16_bit_sum_overflows_where_other_reductions_do_not(count: int) -> None:
    gradients = [torch.full((ELEMENTS,), 40000.0) for _ in range(count)]
    found = {name: reduce(gradients, name, torch.float16) for name in ALL_REDUCTIONS}

    assert all(bool(found[name].isinf().all()) for name in ("sum", "mean"))
    # A leaf divided by a number that is not a power of two is rounded.
    torch.testing.assert_close(found["running-mean"], gradients[0], rtol=2**-9, atol=0)
    torch.testing.assert_close(found[DIVIDED_FIRST], gradients[0], rtol=2**-8, atol=0)


def test_a_leaf_is_divided_before_it_is_rounded() -> None:
    """70,000 overflows float16, a quarter of it does not."""
    gradients = [torch.full((ELEMENTS,), value) for value in (70000.0, 10000.0, 10000.0, 10000.0)]

    assert bool(reduce(gradients, "running-mean", torch.float16).isinf().all())
    # A quarter, 17,500, is rounded to a multiple of 16.
    found = reduce(gradients, DIVIDED_FIRST, torch.float16)
    assert bool(((found - 25000).abs() <= 16).all())


def test_a_leaf_for_a_wider_accumulator_is_divided_in_the_wider_dtype() -> None:
    (gradient,) = leaves(1)
    leaf = DividedFirst(3).prepare_leaf(gradient, torch.float64)

    assert np.array_equal(leaf.numpy(), gradient.double().numpy() / 3)


@all_reductions
def test_the_result_of_one_micro_batch_is_its_gradient(name: str) -> None:
    (gradient,) = leaves(1)

    assert torch.equal(reduce([gradient], name), gradient)


@all_dtypes
def test_running_mean_is_the_default_only_in_float16(dtype: torch.dtype) -> None:
    reduction = make_reduction(DtypePolicy(accumulator=dtype), 4)

    assert type(reduction) is (RunningMean if dtype == torch.float16 else Mean)


def test_accumulators_have_the_dtype_of_the_stored_weight_by_default() -> None:
    policies = [
        DtypePolicy(param=FLOAT16),
        DtypePolicy(param=BFLOAT16),
        DtypePolicy(FLOAT16, FLOAT16, torch.float32),
    ]

    assert [item.accumulator_dtype for item in (DtypePolicy(), *policies)] == [
        *(torch.float32, torch.float16, torch.bfloat16, torch.float32),
    ]
    assert type(make_reduction(DtypePolicy(param=FLOAT16, compute=FLOAT32), 4)) is RunningMean


def test_a_configured_reduction_is_used_with_every_dtype() -> None:
    for dtype in (torch.float16, torch.float32):
        types = {
            "mean": Mean,
            "sum": Reduction,
            "running-mean": RunningMean,
            DIVIDED_FIRST: DividedFirst,
        }
        for name, expected in types.items():
            assert (
                type(make_reduction(DtypePolicy(accumulator=dtype, reduction=name), 4)) is expected
            )


@all_reductions
def test_merging_does_not_modify_the_right_side(name: str) -> None:
    left, right = leaves(2)
    before = right.clone()
    reduction_of(name, 2).merge([left], [right], (1, 1))

    assert torch.equal(right, before)


@all_reductions
def test_a_result_may_be_written_in_place_or_elsewhere(name: str) -> None:
    (total,) = leaves(1)
    for micro_batches in (1, 5):
        separate, reduction = torch.full_like(total, torch.nan), reduction_of(name, micro_batches)
        reduction.finalize(total, micro_batches, separate)
        in_place = total.clone()

        assert reduction.finalize(in_place, micro_batches, in_place) is in_place
        assert torch.equal(in_place, separate)
        assert torch.equal(in_place, total / micro_batches if name == "mean" else total)
