"""Who decays, and who is meant by the names of other programs."""

import pytest
import torch

from convoy.config.schema import build_config
from convoy.numerics.flat import FlatParameters
from convoy.parallel.slice import Slice
from convoy.plan.plan import plan_run
from convoy.run.network import (
    build_network,
    names_matching,
    names_with_roles,
    no_decay_names,
)


def layers(model: str, **asked: object) -> Slice:
    plan = plan_run(build_config({"model": model, **asked}))
    return build_network(plan.network, 0, torch.device("meta")).slice


def decayed_names(one: Slice, spares: str) -> set[str]:
    flat = FlatParameters(one.named_weights(), no_decay_names(one, spares))
    return {str(stretch.name) for stretch in flat.parameter_ranges() if stretch.decays}


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_scale_of_a_norm_is_a_gamma_and_its_offset_a_beta(norm: str) -> None:
    names = names_with_roles(layers("resnet8", norm_type=norm, norm_num_groups=8))

    assert names["bn1.weight"] == "bn1.weight gamma"
    assert names["layer1.0.bn2.bias"] == "layer1.0.bn2.bias beta"
    assert names["conv1.weight"] == "conv1.weight" and names["fc.bias"] == "fc.bias"


def test_vectors_are_spared_by_default() -> None:
    one = layers("resnet8")

    assert decayed_names(one, "vectors") == {
        name for name, weight in one.named_weights().items() if weight.dim() > 1
    }


def test_where_norms_are_spared_the_biases_of_the_classifier_decay() -> None:
    one = layers("resnet8")
    norms = {name for name in one.named_weights() if ".bn" in name or name.startswith("bn")}
    shortcuts = {name for name in one.named_weights() if "downsample.1" in name}
    found = decayed_names(one, "norms")

    assert "fc.bias" in found and "fc.weight" in found
    assert found == one.named_weights().keys() - norms - shortcuts


def test_where_nothing_is_spared_all_decay() -> None:
    one = layers("resnet8")

    assert decayed_names(one, "nothing") == set(one.named_weights())


def test_what_stands_for_a_norm_is_spared_like_one() -> None:
    one = layers("efficientnet-cifar", proxy_norm=True, norm_type="group", norm_num_groups=4)
    proxies = {name for name in one.named_weights() if name.endswith(".proxy")}

    assert proxies and proxies <= decayed_names(one, "vectors")
    assert not proxies & decayed_names(one, "norms")
    assert not {name for name in decayed_names(one, "norms") if name.endswith("act.weight")}


def test_a_part_of_a_name_means_every_weight_that_holds_it() -> None:
    one = layers("resnet8")
    every = set(one.named_weights())

    assert names_matching(one, ["gamma"]) == _scales(every)
    assert names_matching(one, ["beta"]) == {name[:-6] + "bias" for name in _scales(every)}
    assert names_matching(one, ["bias"]) == {name for name in every if name.endswith(".bias")}
    assert names_matching(one, ["layer1.0.conv", "fc"]) == {
        *("layer1.0.conv1.weight", "layer1.0.conv2.weight", "fc.weight", "fc.bias")
    }
    assert names_matching(one, []) == set()


def _scales(names: set[str]) -> set[str]:
    """A norm alone has a weight and a bias without being the classifier."""
    return {
        name
        for name in names
        if name.endswith(".weight") and name[:-6] + "bias" in names and name != "fc.weight"
    }
