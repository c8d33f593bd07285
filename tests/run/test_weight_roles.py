"""Weights selected by role: decay exemptions and filters."""

import pytest
import torch

from convoy.config.schema import build_config
from convoy.numerics.flat import FlatParameters
from convoy.parallel.slice import Slice
from convoy.planning.plan import plan_run
from convoy.run.network import (
    build_network,
    names_matching,
    no_decay_names,
    searchable_names,
)


def layers(model: str, **options: object) -> Slice:
    plan = plan_run(build_config({"model": model, **options}))
    return build_network(plan.network, 0, torch.device("meta")).slice


def decayed_names(model_slice: Slice, spares: str) -> set[str]:
    flat = FlatParameters(model_slice.named_weights(), no_decay_names(model_slice, spares))
    return {str(item.name) for item in flat.parameter_ranges() if item.decays}


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_scale_of_a_norm_is_called_gamma_and_its_offset_beta(norm: str) -> None:
    names = searchable_names(layers("resnet8", norm_type=norm, norm_num_groups=8))

    assert names["bn1.weight"] == "bn1.weight gamma"
    assert names["layer1.0.bn2.bias"] == "layer1.0.bn2.bias beta"
    assert names["conv1.weight"] == "conv1.weight" and names["fc.bias"] == "fc.bias"


def test_vectors_are_exempt_from_decay_by_default() -> None:
    model_slice = layers("resnet8")

    assert decayed_names(model_slice, "vectors") == {
        name for name, weight in model_slice.named_weights().items() if weight.dim() > 1
    }


def test_classifier_biases_decay_if_only_norms_are_exempt() -> None:
    model_slice = layers("resnet8")
    norms = {name for name in model_slice.named_weights() if ".bn" in name or name.startswith("bn")}
    shortcuts = {name for name in model_slice.named_weights() if "downsample.1" in name}
    found = decayed_names(model_slice, "norms")

    assert "fc.bias" in found and "fc.weight" in found
    assert found == model_slice.named_weights().keys() - norms - shortcuts


def test_all_weights_decay_if_none_are_exempt() -> None:
    model_slice = layers("resnet8")

    assert decayed_names(model_slice, "nothing") == set(model_slice.named_weights())


def test_a_proxy_norm_is_exempt_like_a_norm() -> None:
    model_slice = layers(
        "efficientnet-cifar", proxy_norm=True, norm_type="group", norm_num_groups=4
    )
    proxies = {name for name in model_slice.named_weights() if name.endswith(".proxy")}

    assert proxies and proxies <= decayed_names(model_slice, "vectors")
    assert not proxies & decayed_names(model_slice, "norms")
    assert not {name for name in decayed_names(model_slice, "norms") if name.endswith("act.weight")}


def test_a_substring_selects_every_weight_that_contains_it() -> None:
    model_slice = layers("resnet8")
    all_names = set(model_slice.named_weights())

    assert names_matching(model_slice, ["gamma"]) == _scales(all_names)
    assert names_matching(model_slice, ["beta"]) == {
        name[:-6] + "bias" for name in _scales(all_names)
    }
    assert names_matching(model_slice, ["bias"]) == {
        name for name in all_names if name.endswith(".bias")
    }
    assert names_matching(model_slice, ["layer1.0.conv", "fc"]) == {
        *("layer1.0.conv1.weight", "layer1.0.conv2.weight", "fc.weight", "fc.bias")
    }
    assert names_matching(model_slice, []) == set()


def _scales(names: set[str]) -> set[str]:
    """Names of the scales of norms: weights beside a bias, except the classifier."""
    return {
        name
        for name in names
        if name.endswith(".weight") and name[:-6] + "bias" in names and name != "fc.weight"
    }
