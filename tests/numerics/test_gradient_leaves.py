"""A gradient on its way into the tree: rounded to the type of its weight, and seen before that."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree, Mean, fold_nodes
from convoy.numerics.precision import BFLOAT16, FLOAT16, FLOAT32, FloatFormat

VALUES = torch.tensor([0.1, 1 / 3, 2049.0, 1e-7, -70000.0])


def tree(
    used: FloatFormat = FLOAT32, dtype: torch.dtype | None = None, expected: int | None = None
) -> GradientTree:
    weights = {name: nn.Parameter(torch.zeros(5)) for name in ("one", "other")}
    return GradientTree(
        FlatParameters(weights), dtype=dtype, expected_leaves=expected, gradient_format=used
    )


def give(into: GradientTree, *gradients: Tensor) -> list[Tensor]:
    """The same to each weight; what of all of them comes to."""
    for gradient in gradients:
        for weight in into.flat.weights.values():
            weight.grad = gradient.clone()
        into.collect()
    return into.flat.views(fold_nodes(into.nodes()))


@pytest.mark.parametrize("used", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda item: item.name)
@pytest.mark.parametrize("sums", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_leaf_is_rounded_to_the_gradient_dtype_before_the_accumulator_dtype(
    used: FloatFormat, sums: torch.dtype
) -> None:
    (leaf, _) = give(tree(used, sums), VALUES)

    assert leaf.dtype == sums
    assert torch.equal(leaf, used.round_nearest(VALUES).to(sums))


def test_each_leaf_is_rounded_before_the_addition() -> None:
    (found, _) = give(tree(FLOAT16), VALUES, VALUES * 3)

    assert torch.equal(found, VALUES.half().float() + (VALUES * 3).half().float())


def test_an_fp32_gradient_is_not_copied() -> None:
    seen: list[int] = []

    class Looking(Mean):
        def prepare_leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
            seen.append(gradient.data_ptr())
            return super().prepare_leaf(gradient, dtype)

    watched = tree()
    watched.reduction = Looking()
    weights = list(watched.flat.weights.values())
    for weight in weights:
        weight.grad = VALUES.clone()
    places = [weight.grad.data_ptr() for weight in weights if weight.grad is not None]
    watched.collect()

    assert seen == places


def test_the_gradient_hook_gets_each_leaf_once_before_rounding() -> None:
    counted = tree(FLOAT16, torch.bfloat16)
    seen: list[list[Tensor]] = []
    counted.gradient_hook = lambda gradients: seen.append(
        [gradient.clone() for gradient in gradients]
    )
    give(counted, VALUES, VALUES * 2)

    assert [len(item) for item in seen] == [2, 2]
    for number, gradients in enumerate(seen, start=1):
        assert all(torch.equal(gradient, VALUES * number) for gradient in gradients)


def test_the_gradient_hook_gets_early_weights_once() -> None:
    counted = tree(expected=1)
    seen: list[int] = []

    def count(gradients: Sequence[Tensor]) -> None:
        seen.append(len(gradients))

    counted.gradient_hook = count
    counted.register_summed_hook(lambda: None)
    item, other = counted.flat.weights.values()
    (item * VALUES).sum().backward()  # type: ignore[no-untyped-call]
    other.grad = VALUES.clone()  # past the hooks
    counted.collect()

    assert seen == [1, 1]
