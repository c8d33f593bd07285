"""Leaves of the gradient tree: rounding to the gradient dtype, and hooks before it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree, Mean, fold_nodes
from convoy.numerics.precision import BFLOAT16, FLOAT16, FLOAT32, FloatFormat

VALUES = torch.tensor([0.1, 1 / 3, 2049.0, 1e-7, -70000.0])


def tree(
    gradient_format: FloatFormat = FLOAT32,
    dtype: torch.dtype | None = None,
    expected: int | None = None,
) -> GradientTree:
    weights = {name: nn.Parameter(torch.zeros(5)) for name in ("first", "second")}
    return GradientTree(
        FlatParameters(weights),
        dtype=dtype,
        expected_leaves=expected,
        gradient_format=gradient_format,
    )


def collect(into: GradientTree, *gradients: Tensor) -> list[Tensor]:
    """Collect the same gradients for each weight and return the sums."""
    for gradient in gradients:
        for weight in into.flat.weights.values():
            weight.grad = gradient.clone()
        into.collect()
    return into.flat.views(fold_nodes(into.nodes()))


@pytest.mark.parametrize(
    "gradient_format", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda item: item.name
)
@pytest.mark.parametrize(
    "accumulator", [torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
def test_a_leaf_is_rounded_to_the_gradient_dtype_before_the_accumulator_dtype(
    gradient_format: FloatFormat, accumulator: torch.dtype
) -> None:
    (leaf, _) = collect(tree(gradient_format, accumulator), VALUES)

    assert leaf.dtype == accumulator
    assert torch.equal(leaf, gradient_format.round_nearest(VALUES).to(accumulator))


def test_each_leaf_is_rounded_before_the_addition() -> None:
    (total, _) = collect(tree(FLOAT16), VALUES, VALUES * 3)

    assert torch.equal(total, VALUES.half().float() + (VALUES * 3).half().float())


def test_an_fp32_gradient_is_not_copied() -> None:
    seen: list[int] = []

    class RecordingMean(Mean):
        def prepare_leaf(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
            seen.append(gradient.data_ptr())
            return super().prepare_leaf(gradient, dtype)

    gradient_tree = tree()
    gradient_tree.reduction = RecordingMean()
    weights = list(gradient_tree.flat.weights.values())
    for weight in weights:
        weight.grad = VALUES.clone()
    addresses = [weight.grad.data_ptr() for weight in weights if weight.grad is not None]
    gradient_tree.collect()

    assert seen == addresses


def test_the_gradient_hook_gets_each_leaf_once_before_rounding() -> None:
    hooked = tree(FLOAT16, torch.bfloat16)
    seen: list[list[Tensor]] = []
    hooked.gradient_hook = lambda gradients: seen.append(
        [gradient.clone() for gradient in gradients]
    )
    collect(hooked, VALUES, VALUES * 2)

    assert [len(item) for item in seen] == [2, 2]
    for number, gradients in enumerate(seen, start=1):
        assert all(torch.equal(gradient, VALUES * number) for gradient in gradients)


def test_the_gradient_hook_gets_early_weights_once() -> None:
    hooked = tree(expected=1)
    seen: list[int] = []

    def count(gradients: Sequence[Tensor]) -> None:
        seen.append(len(gradients))

    hooked.gradient_hook = count
    hooked.register_summed_hook(lambda: None)
    first, second = hooked.flat.weights.values()
    (first * VALUES).sum().backward()  # type: ignore[no-untyped-call]
    second.grad = VALUES.clone()  # without hooks
    hooked.collect()

    assert seen == [1, 1]
