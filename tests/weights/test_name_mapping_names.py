"""Name mapping, compared with the published layouts of torchvision and timm."""

import pytest
import torch
from support.foreign_weights import BATCHES, parameters, target_for, tensors
from support.published_keys import LAYOUTS, Keys

from convoy.errors import ConfigError
from convoy.weights.name_mapping import (
    NAMINGS,
    detect_naming,
    external_names,
    fit_weights,
    to_external,
)
from convoy.weights.reading import ExternalWeights

IDS = [f"{model}-{naming}" for model, naming, _, _ in LAYOUTS]
# Both libraries use the same names for these, so that torchvision is detected.
SHARED_NAMES = ("resnet50", "resnext50")


@pytest.mark.parametrize(("model", "naming", "keys", "count"), LAYOUTS, ids=IDS)
def test_the_layouts_have_the_published_number_of_parameters(
    model: str, naming: str, keys: Keys, count: int
) -> None:
    del model, naming

    assert parameters(keys) == count


@pytest.mark.parametrize(("model", "naming", "keys", "count"), LAYOUTS, ids=IDS)
def test_weights_round_trip_bit_exactly(model: str, naming: str, keys: Keys, count: int) -> None:
    del count
    published = tensors(keys)
    fitted = fit_weights(ExternalWeights("file", published), target_for(model))
    exported = to_external(fitted.model, naming, fitted.num_batches_tracked or 0)

    assert fitted.naming == ("torchvision" if model in SHARED_NAMES else naming)
    assert (fitted.notes, fitted.num_batches_tracked) == ([], BATCHES)
    assert {name: tuple(tensor.shape) for name, tensor in exported.items()} == keys
    assert all(torch.equal(exported[name], published[name]) for name in published)
    assert all(exported[name].dtype == published[name].dtype for name in published)


@pytest.mark.parametrize(
    "model", ["mobilenet", "efficientnet-b0", "mobilenet-v3-small-published", "resnet18"]
)
def test_converting_between_namings_round_trips(model: str) -> None:
    weights = {name: torch.rand(tensor.shape) for name, tensor in target_for(model).tensors.items()}
    torchvision = to_external(weights, "torchvision", 0)
    other = to_external(
        fit_weights(ExternalWeights("f", torchvision), target_for(model)).model, "timm", 0
    )
    back = fit_weights(ExternalWeights("f", other), target_for(model)).model

    assert all(torch.equal(back[name], weights[name]) for name in weights)


@pytest.mark.parametrize("model", ["efficientnet-b7", "efficientnet-cifar", "resnet8", "resnext29"])
@pytest.mark.parametrize("naming", NAMINGS)
def test_tensor_names_are_unique(model: str, naming: str) -> None:
    names = external_names(naming, list(target_for(model).tensors))

    assert names is not None
    assert len(set(names.values())) == len(names)


def test_a_network_without_squeezes_and_norms_has_consecutive_names() -> None:
    bare = target_for("efficientnet-b0", squeeze_excite=False)
    names = external_names("torchvision", list(bare.tensors))

    assert names is not None
    assert names["blocks.1.0.conv_pwl.weight"] == "features.2.0.block.2.0.weight"


def test_a_network_without_external_counterpart_keeps_our_names() -> None:
    names = list(target_for("squeezenet").tensors)

    assert external_names("torchvision", names) is None
    assert external_names("timm", names) is None
    assert detect_naming(names, names) == "convoy"
    with pytest.raises(
        ConfigError, match=r"^there is no timm key mapping for this model; use --naming convoy$"
    ):
        to_external({name: torch.zeros(1) for name in names}, "timm", 0)


def test_the_convoy_naming_has_no_num_batches_tracked() -> None:
    weights = {
        name: torch.zeros(tensor.shape) for name, tensor in target_for("resnet8").tensors.items()
    }

    assert to_external(weights, "convoy", 7).keys() == weights.keys()
    assert "bn1.num_batches_tracked" in to_external(weights, "timm", 7)
