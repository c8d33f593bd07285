"""Foreign weights and our networks: what is made to fit, and what is refused, all of it at once."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from foreign_files import tensors, wanted
from torch import Tensor

from convoy.errors import CheckpointError
from convoy.weights.name_mapping import FittedWeights, TargetNetwork, fit
from convoy.weights.reading import ForeignWeights

MODEL = "resnet8"
Change = Callable[[dict[str, Tensor]], object]


def theirs() -> dict[str, Tensor]:
    return tensors({name: tuple(form.shape) for name, form in wanted(MODEL).tensors.items()})


def fitted(found: dict[str, Tensor], into: TargetNetwork | None = None) -> FittedWeights:
    return fit(ForeignWeights("file.pth", found), into or wanted(MODEL))


def refused(change: Change) -> str:
    found = theirs()
    change(found)
    with pytest.raises(CheckpointError, match=r"^file\.pth ") as error:
        fitted(found)

    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: found.pop("bn1.bias"), "1 missing (bn1.bias)"),
        (lambda found: found.update(extra=torch.zeros(1)), "1 left over (extra)"),
        (
            lambda found: found.update({"conv1.weight": torch.zeros(16, 3, 5, 5)}),
            "1 of another shape (conv1.weight 16×3×5×5 float32 for 16×3×3×3 float32)",
        ),
        (
            lambda found: found.update({"fc.bias": torch.zeros(10, dtype=torch.int8)}),
            "1 of a type that is no weight (fc.bias 10 int8)",
        ),
        (
            lambda found: found.update({"fc.weight": torch.zeros(7, 65), "fc.bias": torch.ones(7)}),
            "2 of another shape (fc.weight 7×65 float32 for 10×64 float32, fc.bias 7",
        ),
        (
            lambda found: found.update({"fc.weight": torch.zeros(7, 64)}),
            "1 of another shape (fc.weight 7×64 float32 for 10×64 float32)",
        ),
        (lambda found: found.update({"fc.bias": torch.tensor(1.0)}), "1 of another shape (fc.bias"),
        (
            lambda found: found.update({"bn1.bias": torch.zeros(16).to_sparse()}),
            "1 of a type that is no weight (bn1.bias",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_figures(change: Change, why: str) -> None:
    assert f"does not fit resnet8: {why}" in refused(change)


def test_everything_that_is_wrong_is_told_together() -> None:
    def spoil(found: dict[str, Tensor]) -> None:
        del found["bn1.bias"]
        found["extra"] = torch.zeros(1)
        found["conv1.weight"] = torch.zeros(16, 3, 5, 5)

    told = refused(spoil)

    assert "1 missing (" in told and "1 left over (" in told and "1 of another shape (" in told
    assert told.endswith("give the --model and the network options that it was trained with")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    def spoil(found: dict[str, Tensor]) -> None:
        found["bn1.bias"][3] = value

    assert refused(spoil) == "file.pth holds 1 not finite (bn1.bias); it cannot be used"


def test_a_variance_below_zero_is_refused() -> None:
    def spoil(found: dict[str, Tensor]) -> None:
        found["bn1.running_var"][3] *= -1

    assert refused(spoil) == "file.pth holds 1 below zero (bn1.running_var); it cannot be used"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_numbers_become_ours_and_that_is_told(dtype: torch.dtype) -> None:
    found = {name: one.to(dtype) for name, one in theirs().items()}
    made = fitted(found)

    assert made.notes == [f"converted from {str(dtype).removeprefix('torch.')} to float32"]
    assert all(torch.equal(made.model[name], found[name].float()) for name in found)
    assert {one.dtype for one in made.model.values()} == {torch.float32}
    assert {one.dtype for one in made.model.values()} == {torch.float32}


@pytest.mark.parametrize("classes", [3, 7])
def test_another_number_of_classes_gets_the_head_of_the_seed(classes: int) -> None:
    into = wanted(MODEL, num_classes=classes)
    made = fitted(theirs(), into)

    assert made.notes == [f"fc begins anew: the weights know 10 classes, {classes} are wanted"]
    assert torch.equal(made.model["fc.weight"], into.head["fc.weight"])
    assert made.model["fc.weight"].shape == (classes, 64)
    assert torch.equal(made.model["conv1.weight"], theirs()["conv1.weight"])
    assert not torch.equal(
        into.head["fc.weight"], wanted(MODEL, num_classes=classes, seed=9).head["fc.weight"]
    )


def test_a_head_for_as_many_classes_is_kept() -> None:
    assert torch.equal(fitted(theirs()).model["fc.bias"], theirs()["fc.bias"])


def test_a_stem_for_padded_images_gets_a_channel_of_zeros() -> None:
    into = wanted(MODEL)
    forms = {**into.tensors, "conv1.weight": torch.empty(16, 4, 3, 3, device="meta")}
    made = fitted(theirs(), replace(into, tensors=forms))
    stem = made.model["conv1.weight"]

    assert made.notes == ["conv1.weight got a channel of zeros for the padding of the images"]
    assert torch.equal(stem[:, :3], theirs()["conv1.weight"])
    assert not stem[:, 3].any()


def test_one_count_of_batches_is_kept_and_several_are_not() -> None:
    one, two = torch.tensor(5), torch.tensor(6)
    counts = {"bn1.num_batches_tracked": one, "layer1.0.bn1.num_batches_tracked": one}

    assert fitted(theirs() | counts).batches_tracked == 5
    assert fitted(theirs() | counts | {"bn1.num_batches_tracked": two}).batches_tracked is None
    assert fitted(theirs()).batches_tracked is None


def test_a_tensor_that_pretends_to_be_huge_is_refused_unread() -> None:
    endless = torch.zeros(1).expand(10**6, 10**6, 10)

    assert "1 of another shape (bn1.bias 1000000×1000000×10" in refused(
        lambda found: found.update({"bn1.bias": endless})
    )
