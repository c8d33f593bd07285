"""The gradient tree against an explicit pairwise sum, bit for bit, however the leaves are split."""

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
in_every_type = pytest.mark.parametrize("dtype", FLOAT_FORMATS, ids=str)


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
    return [pairwise(column) for column in zip(*gradients, strict=True)]


def tree(
    first: int = 0, dtype: torch.dtype | None = None, expected: int | None = None
) -> GradientTree:
    weights = {str(index): nn.Parameter(torch.zeros(shape)) for index, shape in enumerate(SHAPES)}
    return GradientTree(FlatParameters(weights), first, dtype, expected)


def grow(gradients: Sequence[Sequence[Tensor]], into: GradientTree | None = None) -> GradientTree:
    grown = into or tree()
    for item in gradients:
        for weight, gradient in zip(grown.flat.weights.values(), item, strict=True):
            weight.grad = gradient.clone()
        grown.collect()
    return grown


def total(grown: GradientTree) -> list[Tensor]:
    """The sum in the shapes of the weights; the tree may be used again."""
    full = [view.clone() for view in grown.flat.views(fold_nodes(grown.nodes()))]
    grown.clear()
    return full


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(item, other) for item, other in zip(left, right, strict=True))


def blocks(
    gradients: list[list[Tensor]], sizes: Sequence[int], dtype: torch.dtype | None = None
) -> Iterator[Node]:
    """The nodes of replicas that hold so many leaves each."""
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        yield from grow(gradients[end - size : end], tree(end - size, dtype)).nodes()


def backward(grown: GradientTree, gradient: Sequence[Tensor], places: Sequence[int]) -> None:
    """A backward pass that reaches the weights in this order."""
    weights = list(grown.flat.weights.values())
    for place in places:
        (weights[place] * gradient[place]).sum().backward()


@sweep("count", range(1, 34))
def test_the_sum_matches_an_explicit_pairwise_sum(count: int) -> None:
    gradients = leaves(count)

    assert same(total(grow(gradients)), expected(gradients))


def test_five_micro_batches_are_added_as_drawn() -> None:
    a, b, c, d, e = (torch.tensor(value) for value in (1e8, 1.0, -1e8, 1.0, 0.5))
    weight = nn.Parameter(torch.tensor(0.0))
    single = GradientTree(FlatParameters({"w": weight}))
    for gradient in (a, b, c, d, e):
        weight.grad = gradient.clone()
        single.collect()

    assert torch.equal(fold_nodes(single.nodes())[0], ((a + b) + (c + d)) + e)


def test_the_order_of_micro_batches_changes_the_bits() -> None:
    gradients = leaves(16)
    one_by_one = [sum(column[1:], column[0]) for column in zip(*gradients, strict=True)]

    assert not same(total(grow(gradients)), one_by_one)
    torch.testing.assert_close(total(grow(gradients)), one_by_one, rtol=1e-4, atol=1e-3)


@sweep("count", range(1, 25))
def test_equal_blocks_give_the_bits_of_one_block(count: int) -> None:
    gradients = leaves(count, seed=count)
    full = fold_nodes(grow(gradients).nodes())
    for replicas in (item for item in range(1, count + 1) if count % item == 0):
        split = blocks(gradients, [count // replicas] * replicas)

        assert torch.equal(fold_nodes(split), full)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8).filter(lambda item: sum(item) <= 24))
@settings(deadline=None, max_examples=150)
def test_any_blocks_give_the_bits_of_one_block(sizes: list[int]) -> None:
    gradients = leaves(sum(sizes), seed=7)

    assert torch.equal(fold_nodes(blocks(gradients, sizes)), fold_nodes(grow(gradients).nodes()))


def test_only_sibling_leaves_are_merged() -> None:
    nodes = grow(leaves(3), tree(first=1)).nodes()

    assert [node.span for node in nodes] == [range(1, 2), range(2, 4)]


@sweep("first", range(17))
@sweep("count", range(1, 14))
def test_the_nodes_of_a_block_match_node_spans(first: int, count: int) -> None:
    spans = [node.span for node in grow(leaves(count), tree(first)).nodes()]
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
    grown = grow(leaves(3))

    assert all(weight.grad is None for weight in grown.flat.weights.values())


@sweep("count", [1, 3, 4, 5])
def test_a_cleared_tree_reuses_its_buffers(count: int) -> None:
    grown = grow(leaves(count, seed=1))
    stored = {node.vector.data_ptr() for node in grown.nodes()}
    grown.clear()
    gradients = leaves(count, seed=2)
    grow(gradients, into=grown)

    assert grown.leaves == count
    assert stored & {node.vector.data_ptr() for node in grown.nodes()}
    assert same(total(grown), expected(gradients))


def test_an_empty_tree_has_no_sum() -> None:
    with pytest.raises(AssertionError, match="at least one micro-batch"):
        fold_nodes(tree().nodes())


def test_padding_stays_zero_in_sums() -> None:
    grown = grow(leaves(5))
    vector = fold_nodes(grown.nodes())
    for view in grown.flat.views(vector):
        view.zero_()

    assert not vector.any()


def test_a_stage_without_weights_has_empty_sums() -> None:
    empty = GradientTree(FlatParameters({}))
    for _ in range(3):
        empty.collect()

    assert fold_nodes(empty.nodes()).shape == (0,)


@sweep("count", range(1, 34))
def test_the_tree_never_has_more_vectors_than_planned(count: int) -> None:
    grown = tree()
    most = 0
    for gradient in leaves(count):
        grow([gradient], into=grown)
        most = max(most, len(grown.nodes()))

    assert most == gradient_tree_vectors(count)


@in_every_type
@sweep("count", [1, 2, 3, 5, 6, 8, 12])
def test_a_leaf_is_rounded_before_it_is_added(dtype: torch.dtype, count: int) -> None:
    gradients = leaves(count)
    rounded = [[item.to(dtype) for item in leaf] for leaf in gradients]

    assert same(total(grow(gradients, tree(dtype=dtype))), expected(rounded))


@in_every_type
@sweep("count", [1, 2, 3, 4, 6, 7, 9, 12, 15])
def test_equal_blocks_give_the_bits_of_one_block_in_every_dtype(
    dtype: torch.dtype, count: int
) -> None:
    gradients = leaves(count, seed=count)
    full = fold_nodes(grow(gradients, tree(dtype=dtype)).nodes())
    for replicas in (item for item in range(1, count + 1) if count % item == 0):
        split = blocks(gradients, [count // replicas] * replicas, dtype)

        assert torch.equal(fold_nodes(split), full)


def test_a_wider_dtype_is_closer_to_the_exact_sum() -> None:
    gradients = leaves(24)
    true = expected([[item.double() for item in leaf] for leaf in gradients])
    far = {
        dtype: max(
            float((item - other).abs().max())
            for item, other in zip(total(grow(gradients, tree(dtype=dtype))), true, strict=True)
        )
        for dtype in FLOAT_FORMATS
    }

    assert far[torch.float64] < far[torch.float32] < far[torch.float16] < far[torch.bfloat16]


def test_sums_have_the_dtype_of_the_weights_by_default() -> None:
    plain, reported = tree(), tree(dtype=torch.float32)

    assert plain.dtype == torch.float32
    assert same(total(grow(leaves(3), plain)), total(grow(leaves(3), reported)))


def test_the_reduced_gradient_has_the_dtype_of_the_weights() -> None:
    grown = grow(leaves(2), tree(dtype=torch.float64))

    assert Replicas().reduce(grown).dtype == torch.float32


@sweep("places", list(permutations(range(3))))
@sweep("count", [1, 2, 3, 4, 5, 8])
def test_a_tree_with_hooks_has_the_same_bits_in_any_order(
    count: int, places: tuple[int, ...]
) -> None:
    gradients = leaves(count)
    watched = tree(expected=count)
    seen: list[set[int]] = []
    watched.register_summed_hook(lambda: seen.append(set(watched.summed_weights)))
    for leaf in gradients:
        backward(watched, leaf, places)
        watched.collect()

    assert seen == [set(places[: end + 1]) for end in range(3)]
    assert same(total(watched), expected(gradients))


def test_a_hook_is_called_when_the_sum_is_complete() -> None:
    gradients = leaves(4)
    watched = tree(expected=4)
    watched.register_summed_hook(
        lambda: sums.append(watched.flat.views(fold_nodes(watched.nodes()))[2].clone())
    )
    sums: list[Tensor] = []
    for leaf in gradients:
        backward(watched, leaf, [2, 1, 0])
        watched.collect()

    assert all(torch.equal(item, expected(gradients)[2]) for item in sums)


def test_weights_without_a_hook_are_collected_at_the_end() -> None:
    """torch's split backward writes gradients past the hooks."""
    gradients = leaves(3)
    watched = tree(expected=3)
    watched.register_summed_hook(lambda: None)
    for leaf in gradients:
        backward(watched, leaf, [1])
        for place, weight in enumerate(watched.flat.weights.values()):
            if place != 1:
                weight.grad = leaf[place].clone()
        watched.collect()

    assert same(total(watched), expected(gradients))


def test_a_tree_with_hooks_can_be_reused() -> None:
    watched = tree(expected=3)
    watched.register_summed_hook(lambda: None)
    for seed in (1, 2):
        gradients = leaves(3, seed)
        for leaf in gradients:
            backward(watched, leaf, [2, 1, 0])
            watched.collect()

        assert same(total(watched), expected(gradients))


def test_trees_of_one_process_are_independent() -> None:
    item, other = tree(expected=2), tree(first=2, dtype=torch.float64, expected=2)
    item.register_summed_hook(lambda: None)
    other.register_summed_hook(lambda: None)
    gradients = leaves(4)
    for number in range(2):
        backward(item, gradients[number], [2, 1])
        backward(other, gradients[2 + number], [2, 1, 0])
        backward(item, gradients[number], [0])
        other.collect()
        item.collect()

    assert same(total(item), expected(gradients[:2]))
    assert same(
        total(other), expected([[item.double() for item in leaf] for leaf in gradients[2:]])
    )


def test_a_second_gradient_of_a_weight_is_an_error() -> None:
    watched = tree(expected=1)
    watched.register_summed_hook(lambda: None)
    (leaf,) = leaves(1)
    backward(watched, leaf, [2])

    with pytest.raises(AssertionError, match="two gradients"):
        backward(watched, leaf, [2])


def test_more_micro_batches_than_expected_are_an_error() -> None:
    with pytest.raises(AssertionError, match="2 micro-batches"):
        grow(leaves(3), tree(expected=2))
