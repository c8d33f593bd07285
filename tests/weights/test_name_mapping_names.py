"""Names in and out, against the layouts that torchvision and timm publish."""

import pytest
import torch
from foreign_files import BATCHES, parameters, tensors, wanted
from published_keys import LAYOUTS, Keys

from convoy.errors import ConfigError
from convoy.weights.name_mapping import NAMINGS, detect, fit, foreign_names, foreign_tensors
from convoy.weights.reading import ForeignWeights

IDS = [f"{model}-{naming}" for model, naming, _, _ in LAYOUTS]
# Where the two libraries use the same names, the first one is told.
SAME = ("resnet50", "resnext50")


@pytest.mark.parametrize(("model", "naming", "keys", "count"), LAYOUTS, ids=IDS)
def test_the_layouts_have_the_published_number_of_parameters(
    model: str, naming: str, keys: Keys, count: int
) -> None:
    del model, naming

    assert parameters(keys) == count


@pytest.mark.parametrize(("model", "naming", "keys", "count"), LAYOUTS, ids=IDS)
def test_weights_come_in_and_go_out_with_every_bit_in_its_place(
    model: str, naming: str, keys: Keys, count: int
) -> None:
    del count
    theirs = tensors(keys)
    fitted = fit(ForeignWeights("file", theirs), wanted(model))
    again = foreign_tensors(fitted.model, naming, fitted.batches_tracked or 0)

    assert fitted.naming == ("torchvision" if model in SAME else naming)
    assert (fitted.notes, fitted.batches_tracked) == ([], BATCHES)
    assert {name: tuple(one.shape) for name, one in again.items()} == keys
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)
    assert all(again[name].dtype == theirs[name].dtype for name in theirs)


@pytest.mark.parametrize(
    "model", ["mobilenet", "efficientnet-b0", "mobilenet-v3-small-published", "resnet18"]
)
def test_from_one_naming_to_the_other_and_back_nothing_is_lost(model: str) -> None:
    ours = {name: torch.rand(form.shape) for name, form in wanted(model).tensors.items()}
    one = foreign_tensors(ours, "torchvision", 0)
    other = foreign_tensors(fit(ForeignWeights("f", one), wanted(model)).model, "timm", 0)
    back = fit(ForeignWeights("f", other), wanted(model)).model

    assert all(torch.equal(back[name], ours[name]) for name in ours)


@pytest.mark.parametrize("model", ["efficientnet-b7", "efficientnet-cifar", "resnet8", "resnext29"])
@pytest.mark.parametrize("naming", NAMINGS)
def test_no_two_tensors_get_one_name(model: str, naming: str) -> None:
    names = foreign_names(naming, list(wanted(model).tensors))

    assert names is not None
    assert len(set(names.values())) == len(names)


def test_a_network_without_squeezes_and_norms_is_counted_through() -> None:
    bare = wanted("efficientnet-b0", squeeze_excite=False)
    names = foreign_names("torchvision", list(bare.tensors))

    assert names is not None
    assert names["blocks.1.0.conv_pwl.weight"] == "features.2.0.block.2.0.weight"


def test_a_network_that_others_do_not_have_keeps_our_names() -> None:
    names = list(wanted("squeezenet").tensors)

    assert foreign_names("torchvision", names) is None
    assert foreign_names("timm", names) is None
    assert detect(names, names) == "convoy"
    with pytest.raises(ConfigError, match=r"^timm has no such network; use --naming convoy$"):
        foreign_tensors({name: torch.zeros(1) for name in names}, "timm", 0)


def test_our_own_naming_has_no_counts_of_batches() -> None:
    ours = {name: torch.zeros(form.shape) for name, form in wanted("resnet8").tensors.items()}

    assert foreign_tensors(ours, "convoy", 7).keys() == ours.keys()
    assert "bn1.num_batches_tracked" in foreign_tensors(ours, "timm", 7)
