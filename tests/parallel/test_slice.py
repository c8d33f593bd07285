"""Slices that run one after another have the bits of the full network."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from support.networks import bottleneck_layers, build_slice, images_and_labels, small_layers
from torch import Tensor, nn

from convoy.layers.build import build_layers
from convoy.layers.norms import BatchNorm
from convoy.models.layers import ActivationSpec, AddSpec, ConvSpec, LayerPlan, Route
from convoy.parallel.slice import Slice

NETWORKS = {
    "small": small_layers(),
    "group": small_layers("group", "B"),
    "none": small_layers("none", "C"),
    "bottleneck": bottleneck_layers(zero=False),
}


class SlicedNetwork:
    """A network in slices that start at these layers, like the stages of a pipeline."""

    def __init__(self, layers: Sequence[LayerPlan], starts: Sequence[int]) -> None:
        modules = build_layers(layers, seed=1)
        boundaries = pairwise([*starts, len(layers)])
        self.slices = [Slice(layers[first:end], modules) for first, end in boundaries]

    def train(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Forward and backward through all slices; returns logits, gradients and statistics."""
        layout = torch.channels_last
        bundle: tuple[Tensor, ...] = (images.to(memory_format=layout),)
        received, sent = [], []
        for item in self.slices:
            item.to(memory_format=layout)  # type: ignore[call-overload]  # incomplete stub
            received.append(bundle)
            sent.append(item(*bundle))
            bundle = tuple(tensor.detach().requires_grad_() for tensor in sent[-1])
        (logits,) = sent[-1]
        gradients: list[Tensor | None] = [None]
        sent[-1] = (F.cross_entropy(logits, labels),)
        for values, output in zip(reversed(received), reversed(sent), strict=True):
            torch.autograd.backward(output, gradients)
            gradients = [tensor.grad for tensor in values]
        return {"logits": logits.detach(), **self.gradients_and_statistics()}

    def gradients_and_statistics(self) -> dict[str, Tensor]:
        """Gradients by weight, and pending statistics."""
        found = {}
        for item in self.slices:
            for name, weight in item.named_weights().items():
                assert weight.grad is not None
                found[name] = weight.grad
            for name, norm in item.layers.items():
                if isinstance(norm, BatchNorm):
                    ((found[f"{name} mean"], found[f"{name} variance"]),) = norm.pending_statistics
        return found


def different(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_split_before_any_layer_gives_the_same_bits(name: str):
    layers = NETWORKS[name]
    batch = images_and_labels(2, 12)
    full = SlicedNetwork(layers, [0]).train(*batch)

    assert all(tensor.any() for tensor in full.values())
    for start in range(1, len(layers)):
        sliced = SlicedNetwork(layers, [0, start]).train(*batch)

        assert different(sliced, full) == [], layers[start].name


@pytest.mark.parametrize("name", NETWORKS)
def test_a_slice_for_every_layer_gives_the_same_bits(name: str):
    layers = NETWORKS[name]
    batch = images_and_labels(2, 12)
    network = SlicedNetwork(layers, range(len(layers)))

    assert different(network.train(*batch), SlicedNetwork(layers, [0]).train(*batch)) == []


def test_a_slice_does_not_modify_its_inputs():
    layers = small_layers()
    modules = build_layers(layers, seed=0)
    images, _ = images_and_labels(2, 8)
    for start in range(1, len(layers)):
        received = [tensor.detach() for tensor in Slice(layers[:start], modules)(images)]
        copies = [tensor.clone() for tensor in received]
        Slice(layers[start:], modules)(*received)

        assert all(map(torch.equal, received, copies)), layers[start].name


def test_a_slice_does_not_modify_an_input_that_only_a_side_branch_reads():
    layers = (
        LayerPlan("conv", ConvSpec(1, 1, 1), Route.FORK),
        LayerPlan("relu", ActivationSpec("relu"), Route.SIDE),
        LayerPlan("add", AddSpec(), Route.JOIN),
    )
    received = torch.full((1, 1, 1, 1), -3.0)
    Slice(layers, build_layers(layers, seed=0))(received)

    assert float(received) == -3


def test_layers_inside_a_slice_work_in_place():
    network = build_slice(small_layers())
    activations = [module for module in network.modules() if isinstance(module, nn.ReLU)]

    assert activations and all(activation.inplace for activation in activations)


def test_slicing_does_not_modify_the_layers_of_the_network():
    layers = small_layers()
    modules = build_layers(layers, seed=0)
    start = [layer.name for layer in layers].index("layer1/0/relu")
    Slice(layers[start:], modules)
    activation = modules["layer1/0/relu"]

    assert isinstance(activation, nn.ReLU) and activation.inplace


def test_each_route_reads_and_writes_its_tensors():
    layers = (
        LayerPlan("fork", ConvSpec(1, 1, 1, bias=True), Route.FORK),
        LayerPlan("side", ConvSpec(1, 1, 1, bias=True), Route.SIDE),
        LayerPlan("main", ActivationSpec("relu")),
        LayerPlan("join", AddSpec(), Route.JOIN),
    )
    modules = build_layers(layers, seed=0)
    for name, factor in (("fork", -2.0), ("side", 10.0)):
        nn.init.constant_(modules[name].get_parameter("weight"), factor)
    bundle: tuple[Tensor, ...] = (torch.full((1, 1, 1, 1), 3.0), torch.full((1, 1, 1, 1), 7.0))
    seen = []
    with torch.no_grad():
        for layer in layers:
            bundle = Slice([layer], modules)(*bundle)
            seen.append([float(tensor) for tensor in bundle])

    assert seen == [[-6, 3, 7], [-6, 30, 7], [0, 30, 7], [30, 7]]


@pytest.mark.parametrize("starts", [[0], [0, 5], [0, 3, 9, 14]])
def test_names_do_not_depend_on_stages(starts: list[int]):
    layers = small_layers()
    slices = SlicedNetwork(layers, starts).slices
    names = [name for item in slices for name in item.named_tensors()]

    assert names == list(build_slice(layers).named_tensors())
    assert {"conv1.weight", "layer2.0.bn1.running_var", "fc.bias"} <= set(names)


def test_named_weights_are_the_parameters():
    network = build_slice(small_layers())
    tensors, weights = network.named_tensors(), network.named_weights()

    assert all(weight is tensors[name] for name, weight in weights.items())
    assert {name.rsplit(".")[-1] for name in tensors.keys() - weights.keys()} == {
        "running_mean",
        "running_var",
    }
