"""The gradient tree has the bits of an explicit pairwise sum for any split of the leaves."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweeps import sweep
from torch import Tensor, nn

from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import (
    ACCUMULATOR_DTYPES,
    GradientTree,
    Node,
    fold_nodes,
    node_spans,
)
from convoy.parallel.replicas import Replicas
from convoy.planning.memory import gradient_tree_vectors

SHAPES = ((4, 3, 3, 3), (7,), (2, 5))
FLOAT_FORMATS = [item for item in ACCUMULATOR_DTYPES.values() if item]
all_dtypes = pytest.mark.parametrize("dtype", FLOAT_FORMATS, ids=str)


def leaves(count: int, seed: int = 0) -> list[list[Tensor]]:
    """One gradient per weight for each micro-batch, of very different magnitudes."""
    rng = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(shape, generator=rng) * 10 ** (index % 5 - 2) for shape in SHAPES]
        for index in range(count)
    ]


def pairwise(parts: Sequence[Tensor]) -> Tensor:
    """Left + right half; the left half is the largest power of two below the count."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return pairwise(parts[:half]) + pairwise(parts[half:])


def expected(gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [pairwise(column) for column in zip(*gradients, strict=True)]


def tree(
    first: int = 0, dtype: torch.dtype | None = None, expected: int | None = None
) -> GradientTree:
    weights = {str(index): nn.Parameter(torch.zeros(shape)) for index, shape in enumerate(SHAPES)}
    return GradientTree(FlatParameters(weights), first, dtype, expected)


def collect(
    gradients: Sequence[Sequence[Tensor]], into: GradientTree | None = None
) -> GradientTree:
    gradient_tree = into or tree()
    for item in gradients:
        for weight, gradient in zip(gradient_tree.flat.weights.values(), item, strict=True):
            weight.grad = gradient.clone()
        gradient_tree.collect()
    return gradient_tree


def total(gradient_tree: GradientTree) -> list[Tensor]:
    """Return the sum in the shapes of the weights and clear the tree."""
    full = [view.clone() for view in gradient_tree.flat.views(fold_nodes(gradient_tree.nodes()))]
    gradient_tree.clear()
    return full


def is_equal(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(item, other) for item, other in zip(left, right, strict=True))


def blocks(
    gradients: list[list[Tensor]], sizes: Sequence[int], dtype: torch.dtype | None = None
) -> Iterator[Node]:
    """The nodes of replicas with these numbers of leaves."""
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        yield from collect(gradients[end - size : end], tree(end - size, dtype)).nodes()


def backward(gradient_tree: GradientTree, gradient: Sequence[Tensor], order: Sequence[int]) -> None:
    """A backward pass that reaches the weights in this order."""
    weights = list(gradient_tree.flat.weights.values())
    for index in order:
        (weights[index] * gradient[index]).sum().backward()


@sweep("count", range(1, 34))
def test_the_sum_matches_an_explicit_pairwise_sum(count: int) -> None:
    gradients = leaves(count)

    assert is_equal(total(collect(gradients)), expected(gradients))


def test_five_micro_batches_are_added_in_pairs() -> None:
    a, b, c, d, e = (torch.tensor(value) for value in (1e8, 1.0, -1e8, 1.0, 0.5))
    weight = nn.Parameter(torch.tensor(0.0))
    single = GradientTree(FlatParameters({"w": weight}))
    for gradient in (a, b, c, d, e):
        weight.grad = gradient.clone()
        single.collect()

    assert torch.equal(fold_nodes(single.nodes())[0], ((a + b) + (c + d)) + e)


def test_the_order_of_micro_batches_changes_the_bits() -> None:
    gradients = leaves(16)
    sequential = [sum(column[1:], column[0]) for column in zip(*gradients, strict=True)]

    assert not is_equal(total(collect(gradients)), sequential)
    torch.testing.assert_close(total(collect(gradients)), sequential, rtol=1e-4, atol=1e-3)


@sweep("count", range(1, 25))
def test_equal_blocks_give_the_bits_of_one_block(count: int) -> None:
    gradients = leaves(count, seed=count)
    full = fold_nodes(collect(gradients).nodes())
    for replicas in (item for item in range(1, count + 1) if count % item == 0):
        split = blocks(gradients, [count // replicas] * replicas)

        assert torch.equal(fold_nodes(split), full)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8).filter(lambda item: sum(item) <= 24))
@settings(deadline=None, max_examples=150)
def test_any_blocks_give_the_bits_of_one_block(sizes: list[int]) -> None:
    gradients = leaves(sum(sizes), seed=7)

    assert torch.equal(fold_nodes(blocks(gradients, sizes)), fold_nodes(collect(gradients).nodes()))


def test_only_sibling_leaves_are_merged() -> None:
    nodes = collect(leaves(3), tree(first=1)).nodes()

    assert [node.span for node in nodes] == [range(1, 2), range(2, 4)]


@sweep("first", range(17))
@sweep("count", range(1, 14))
def test_the_nodes_of_a_block_match_node_spans(first: int, count: int) -> None:
    spans = [node.span for node in collect(leaves(count), tree(first)).nodes()]
    ends = [first, *(span.stop for span in spans)]

    assert spans == node_spans(first, count)
    assert ends[:-1] == [span.start for span in spans] and ends[-1] == first + count
    assert all(len(span).bit_count() == 1 and span.start % len(span) == 0 for span in spans)


def test_an_aligned_block_of_a_power_of_two_is_one_node() -> None:
    for count in (1, 2, 4, 8):
        for replica in range(5):
            assert node_spans(replica * count, count) == [
                range(replica * count, (replica + 1) * count)
            ]


def test_collecting_clears_the_gradients() -> None:
    gradient_tree = collect(leaves(3))

    assert all(weight.grad is None for weight in gradient_tree.flat.weights.values())


@sweep("count", [1, 3, 4, 5])
def test_a_cleared_tree_reuses_its_buffers(count: int) -> None:
    gradient_tree = collect(leaves(count, seed=1))
    buffers = {node.vector.data_ptr() for node in gradient_tree.nodes()}
    gradient_tree.clear()
    gradients = leaves(count, seed=2)
    collect(gradients, into=gradient_tree)

    assert gradient_tree.leaves == count
    assert buffers & {node.vector.data_ptr() for node in gradient_tree.nodes()}
    assert is_equal(total(gradient_tree), expected(gradients))


def test_an_empty_tree_has_no_sum() -> None:
    with pytest.raises(AssertionError, match="at least one micro-batch"):
        fold_nodes(tree().nodes())


def test_padding_stays_zero_in_sums() -> None:
    gradient_tree = collect(leaves(5))
    vector = fold_nodes(gradient_tree.nodes())
    for view in gradient_tree.flat.views(vector):
        view.zero_()

    assert not vector.any()


def test_a_stage_without_weights_has_empty_sums() -> None:
    empty = GradientTree(FlatParameters({}))
    for _ in range(3):
        empty.collect()

    assert fold_nodes(empty.nodes()).shape == (0,)


@sweep("count", range(1, 34))
def test_the_tree_never_has_more_vectors_than_planned(count: int) -> None:
    gradient_tree = tree()
    peak = 0
    for gradient in leaves(count):
        collect([gradient], into=gradient_tree)
        peak = max(peak, len(gradient_tree.nodes()))

    assert peak == gradient_tree_vectors(count)


@all_dtypes
@sweep("count", [1, 2, 3, 5, 6, 8, 12])
def test_a_leaf_is_rounded_before_it_is_added(dtype: torch.dtype, count: int) -> None:
    gradients = leaves(count)
    rounded = [[item.to(dtype) for item in leaf] for leaf in gradients]

    assert is_equal(total(collect(gradients, tree(dtype=dtype))), expected(rounded))


@all_dtypes
@sweep("count", [1, 2, 3, 4, 6, 7, 9, 12, 15])
def test_equal_blocks_give_the_bits_of_one_block_in_every_dtype(
    dtype: torch.dtype, count: int
) -> None:
    gradients = leaves(count, seed=count)
    full = fold_nodes(collect(gradients, tree(dtype=dtype)).nodes())
    for replicas in (item for item in range(1, count + 1) if count % item == 0):
        split = blocks(gradients, [count // replicas] * replicas, dtype)

        assert torch.equal(fold_nodes(split), full)


def test_a_wider_dtype_is_closer_to_the_exact_sum() -> None:
    gradients = leaves(24)
    exact = expected([[item.double() for item in leaf] for leaf in gradients])
    errors = {
        dtype: max(
            float((item - other).abs().max())
            for item, other in zip(total(collect(gradients, tree(dtype=dtype))), exact, strict=True)
        )
        for dtype in FLOAT_FORMATS
    }

    assert (
        errors[torch.float64]
        < errors[torch.float32]
        < errors[torch.float16]
        < errors[torch.bfloat16]
    )


def test_sums_have_the_dtype_of_the_weights_by_default() -> None:
    plain, explicit = tree(), tree(dtype=torch.float32)

    assert plain.dtype == torch.float32
    assert is_equal(total(collect(leaves(3), plain)), total(collect(leaves(3), explicit)))


def test_the_reduced_gradient_has_the_dtype_of_the_weights() -> None:
    gradient_tree = collect(leaves(2), tree(dtype=torch.float64))

    assert Replicas().reduce(gradient_tree).dtype == torch.float32


@sweep("order", list(permutations(range(3))))
@sweep("count", [1, 2, 3, 4, 5, 8])
def test_a_tree_with_hooks_has_the_same_bits_in_any_order(
    count: int, order: tuple[int, ...]
) -> None:
    gradients = leaves(count)
    hooked = tree(expected=count)
    seen: list[set[int]] = []
    hooked.register_summed_hook(lambda: seen.append(set(hooked.summed_weights)))
    for leaf in gradients:
        backward(hooked, leaf, order)
        hooked.collect()

    assert seen == [set(order[: end + 1]) for end in range(3)]
    assert is_equal(total(hooked), expected(gradients))


def test_a_hook_is_called_when_the_sum_is_complete() -> None:
    gradients = leaves(4)
    hooked = tree(expected=4)
    hooked.register_summed_hook(
        lambda: sums.append(hooked.flat.views(fold_nodes(hooked.nodes()))[2].clone())
    )
    sums: list[Tensor] = []
    for leaf in gradients:
        backward(hooked, leaf, [2, 1, 0])
        hooked.collect()

    assert all(torch.equal(item, expected(gradients)[2]) for item in sums)


def test_weights_without_a_hook_are_collected_at_the_end() -> None:
    """The split backward of torch sets gradients without calling hooks."""
    gradients = leaves(3)
    hooked = tree(expected=3)
    hooked.register_summed_hook(lambda: None)
    for leaf in gradients:
        backward(hooked, leaf, [1])
        for index, weight in enumerate(hooked.flat.weights.values()):
            if index != 1:
                weight.grad = leaf[index].clone()
        hooked.collect()

    assert is_equal(total(hooked), expected(gradients))


def test_a_tree_with_hooks_can_be_reused() -> None:
    hooked = tree(expected=3)
    hooked.register_summed_hook(lambda: None)
    for seed in (1, 2):
        gradients = leaves(3, seed)
        for leaf in gradients:
            backward(hooked, leaf, [2, 1, 0])
            hooked.collect()

        assert is_equal(total(hooked), expected(gradients))


def test_trees_of_one_process_are_independent() -> None:
    first, second = tree(expected=2), tree(first=2, dtype=torch.float64, expected=2)
    first.register_summed_hook(lambda: None)
    second.register_summed_hook(lambda: None)
    gradients = leaves(4)
    for number in range(2):
        backward(first, gradients[number], [2, 1])
        backward(second, gradients[2 + number], [2, 1, 0])
        backward(first, gradients[number], [0])
        second.collect()
        first.collect()

    assert is_equal(total(first), expected(gradients[:2]))
    assert is_equal(
        total(second), expected([[item.double() for item in leaf] for leaf in gradients[2:]])
    )


def test_a_second_gradient_of_a_weight_is_an_error() -> None:
    hooked = tree(expected=1)
    hooked.register_summed_hook(lambda: None)
    (leaf,) = leaves(1)
    backward(hooked, leaf, [2])

    with pytest.raises(AssertionError, match="two gradients"):
        backward(hooked, leaf, [2])


def test_more_micro_batches_than_expected_are_an_error() -> None:
    with pytest.raises(AssertionError, match="2 micro-batches"):
        collect(leaves(3), tree(expected=2))
