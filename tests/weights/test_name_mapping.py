"""Weights of other libraries: conversions, and mismatches reported together."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.foreign_weights import target_for, tensors
from torch import Tensor

from convoy.errors import CheckpointError
from convoy.weights.name_mapping import FittedWeights, TargetNetwork, fit_weights
from convoy.weights.reading import ExternalWeights

MODEL = "resnet8"
Change = Callable[[dict[str, Tensor]], object]


def external_weights() -> dict[str, Tensor]:
    return tensors(
        {name: tuple(tensor.shape) for name, tensor in target_for(MODEL).tensors.items()}
    )


def fit(found: dict[str, Tensor], target: TargetNetwork | None = None) -> FittedWeights:
    return fit_weights(ExternalWeights("file.pth", found), target or target_for(MODEL))


def error_message(change: Change) -> str:
    found = external_weights()
    change(found)
    with pytest.raises(CheckpointError, match=r"^file\.pth ") as error:
        fit(found)

    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: found.pop("bn1.bias"), "1 missing (bn1.bias)"),
        (lambda found: found.update(extra=torch.zeros(1)), "1 unexpected (extra)"),
        (
            lambda found: found.update({"conv1.weight": torch.zeros(16, 3, 5, 5)}),
            "1 with the wrong shape (conv1.weight 16×3×5×5 float32, expected 16×3×3×3 float32)",
        ),
        (
            lambda found: found.update({"fc.bias": torch.zeros(10, dtype=torch.int8)}),
            "1 not dense floating-point tensors (fc.bias 10 int8)",
        ),
        (
            lambda found: found.update({"fc.weight": torch.zeros(7, 65), "fc.bias": torch.ones(7)}),
            "2 with the wrong shape (fc.weight 7×65 float32, expected 10×64 float32, fc.bias 7",
        ),
        (
            lambda found: found.update({"fc.weight": torch.zeros(7, 64)}),
            "1 with the wrong shape (fc.weight 7×64 float32, expected 10×64 float32)",
        ),
        (
            lambda found: found.update({"fc.bias": torch.tensor(1.0)}),
            "1 with the wrong shape (fc.bias",
        ),
        (
            lambda found: found.update({"bn1.bias": torch.zeros(16).to_sparse()}),
            "1 not dense floating-point tensors (bn1.bias",
        ),
    ],
)
def test_mismatched_tensors_are_listed_with_their_shapes(change: Change, reason: str) -> None:
    assert f"does not match resnet8: {reason}" in error_message(change)


def test_all_mismatches_are_reported_together() -> None:
    def damage(found: dict[str, Tensor]) -> None:
        del found["bn1.bias"]
        found["extra"] = torch.zeros(1)
        found["conv1.weight"] = torch.zeros(16, 3, 5, 5)

    message = error_message(damage)

    assert (
        "1 missing (" in message
        and "1 unexpected (" in message
        and "1 with the wrong shape (" in message
    )
    assert "--model" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_refused(value: float) -> None:
    def damage(found: dict[str, Tensor]) -> None:
        found["bn1.bias"][3] = value

    assert "1 non-finite tensors (bn1.bias)" in error_message(damage)


def test_a_negative_variance_is_refused() -> None:
    def damage(found: dict[str, Tensor]) -> None:
        found["bn1.running_var"][3] *= -1

    assert "1 negative variances (bn1.running_var)" in error_message(damage)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_dtypes_are_converted_and_noted(dtype: torch.dtype) -> None:
    found = {name: tensor.to(dtype) for name, tensor in external_weights().items()}
    result = fit(found)

    assert result.notes == [f"converted from {str(dtype).removeprefix('torch.')} to float32"]
    assert all(torch.equal(result.model[name], found[name].float()) for name in found)
    assert {tensor.dtype for tensor in result.model.values()} == {torch.float32}


@pytest.mark.parametrize("classes", [3, 7])
def test_a_different_number_of_classes_reinitializes_the_head(classes: int) -> None:
    target = target_for(MODEL, num_classes=classes)
    result = fit(external_weights(), target)

    assert result.notes == [
        f"fc is reinitialized: the weights have 10 classes, but the model has {classes}"
    ]
    assert torch.equal(result.model["fc.weight"], target.head["fc.weight"])
    assert result.model["fc.weight"].shape == (classes, 64)
    assert torch.equal(result.model["conv1.weight"], external_weights()["conv1.weight"])
    assert not torch.equal(
        target.head["fc.weight"], target_for(MODEL, num_classes=classes, seed=9).head["fc.weight"]
    )


def test_a_head_with_the_same_number_of_classes_is_kept() -> None:
    assert torch.equal(fit(external_weights()).model["fc.bias"], external_weights()["fc.bias"])


def test_a_stem_for_padded_images_is_padded_with_zeros() -> None:
    target = target_for(MODEL)
    shapes = {**target.tensors, "conv1.weight": torch.empty(16, 4, 3, 3, device="meta")}
    result = fit(external_weights(), replace(target, tensors=shapes))
    stem = result.model["conv1.weight"]

    assert result.notes == ["added a zero input channel to conv1.weight (--input-image-padding)"]
    assert torch.equal(stem[:, :3], external_weights()["conv1.weight"])
    assert not stem[:, 3].any()


def test_num_batches_tracked_is_kept_only_if_unique() -> None:
    five, six = torch.tensor(5), torch.tensor(6)
    counts = {"bn1.num_batches_tracked": five, "layer1.0.bn1.num_batches_tracked": five}

    assert fit(external_weights() | counts).num_batches_tracked == 5
    assert (
        fit(external_weights() | counts | {"bn1.num_batches_tracked": six}).num_batches_tracked
        is None
    )
    assert fit(external_weights()).num_batches_tracked is None


def test_a_tensor_that_claims_to_be_huge_is_refused_without_reading_it() -> None:
    huge = torch.zeros(1).expand(10**6, 10**6, 10)

    assert "1 with the wrong shape (bn1.bias 1000000×1000000×10" in error_message(
        lambda found: found.update({"bn1.bias": huge})
    )
