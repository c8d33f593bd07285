"""Norms folded into copies of convolutions do not change the outputs."""

from dataclasses import replace

import pytest
import torch
from support.networks import bottleneck_layers, images_and_labels, small_layers
from torch import Tensor, nn

from convoy.layers.build import build_layers
from convoy.layers.norms import BatchNorm, fold_batch_norms
from convoy.models.layers import AddSpec, ConvSpec, LayerPlan, NormSpec, Route
from convoy.parallel.slice import Slice

TOLERANCE = 1e-5  # relative to the largest output
Layers = tuple[LayerPlan, ...]
NORM = NormSpec(8, "batch", groups=1, eps=1e-3, momentum=0.1)

NETWORKS = {
    "basic": small_layers(),
    "projecting": small_layers("batch", "C"),
    "bottleneck": bottleneck_layers(zero=False),
}


def with_random_statistics(layers: Layers) -> dict[str, nn.Module]:
    """Layers with random scales, offsets and running statistics."""
    modules = build_layers(layers, seed=1)
    rng = torch.Generator().manual_seed(5)
    for module in modules.values():
        if isinstance(module, BatchNorm):
            if module.weight is not None:
                module.weight.data.uniform_(0.2, 2, generator=rng)
            if module.bias is not None:
                module.bias.data.normal_(generator=rng)
            module.running_mean.normal_(generator=rng)
            module.running_var.uniform_(0.1, 3, generator=rng)
        elif isinstance(module, nn.Conv2d) and module.bias is not None:
            module.bias.data.normal_(generator=rng)
    return modules


def outputs_of(layers: list[LayerPlan] | Layers, modules: dict[str, nn.Module]) -> Tensor:
    images, _ = images_and_labels(3, 20)
    with torch.inference_mode():
        return Slice(layers, modules).eval()(images)[0]


def norms_in(layers: list[LayerPlan] | Layers) -> list[str]:
    return [layer.name for layer in layers if isinstance(layer.operation, NormSpec)]


@pytest.mark.parametrize("layers", NETWORKS.values(), ids=NETWORKS)
def test_folding_preserves_the_outputs_and_removes_all_norms(layers: Layers) -> None:
    modules = with_random_statistics(layers)
    expected = outputs_of(layers, modules)
    folded = fold_batch_norms(layers, modules)
    difference = (outputs_of(*folded) - expected).abs().max()

    assert norms_in(layers)
    assert norms_in(folded[0]) == []
    assert difference <= TOLERANCE * expected.abs().max()


def test_the_bias_of_a_convolution_is_folded() -> None:
    layers = (LayerPlan("conv", ConvSpec(3, 8, 3, bias=True)), LayerPlan("norm", NORM))
    modules = with_random_statistics(layers)
    expected = outputs_of(layers, modules)

    assert torch.allclose(
        outputs_of(*fold_batch_norms(layers, modules)), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("scale", "offset"), [(False, False), (True, False), (False, True)])
def test_a_norm_without_scale_or_offset_is_folded(scale: bool, offset: bool) -> None:
    norm = replace(NORM, scale=scale, offset=offset)
    layers = (LayerPlan("conv", ConvSpec(3, 8, 3)), LayerPlan("norm", norm))
    modules = with_random_statistics(layers)
    folded_layers, copies = fold_batch_norms(layers, modules)
    expected = outputs_of(layers, modules)

    assert [layer.name for layer in folded_layers] == ["conv"]
    assert torch.allclose(outputs_of(folded_layers, copies), expected, rtol=1e-5, atol=1e-5)


def test_a_branch_that_starts_with_a_convolution_is_folded() -> None:
    layers = (
        LayerPlan("stem", ConvSpec(3, 8, 3)),
        LayerPlan("conv", ConvSpec(8, 8, 3), Route.BRANCH),
        LayerPlan("norm", NORM, Route.SIDE),
        LayerPlan("add", AddSpec(), Route.JOIN),
    )
    modules = with_random_statistics(layers)
    folded_layers, copies = fold_batch_norms(layers, modules)

    assert [layer.name for layer in folded_layers] == ["stem", "conv", "add"]
    assert torch.allclose(
        outputs_of(folded_layers, copies), outputs_of(layers, modules), rtol=1e-5, atol=1e-4
    )


def test_folding_does_not_modify_or_share_the_original_weights() -> None:
    layers = NETWORKS["basic"]
    modules = with_random_statistics(layers)
    before = {name: item.clone() for name, item in Slice(layers, modules).named_tensors().items()}
    _, copies = fold_batch_norms(layers, modules)
    with torch.no_grad():
        for copy in copies.values():
            for weight in copy.parameters():
                weight.fill_(7)
    after = Slice(layers, modules).named_tensors()

    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(copy is not modules[name] for name, copy in copies.items())


def test_folded_weights_are_channels_last() -> None:
    layers = NETWORKS["basic"]
    modules = with_random_statistics(layers)
    for module in modules.values():
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # incomplete stub
    _, copies = fold_batch_norms(layers, modules)
    conv = copies["layer1/0/conv1"]

    assert isinstance(conv, nn.Conv2d)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)


CONV = ConvSpec(8, 8, 3)
NOT_FOLDABLE: dict[str, Layers] = {
    "on another branch": (
        LayerPlan("first", CONV, Route.FORK),
        LayerPlan("norm", NORM, Route.SIDE),
        LayerPlan("add", AddSpec(), Route.JOIN),
    ),
    "main branch after a side convolution": (
        LayerPlan("fork", CONV, Route.FORK),
        LayerPlan("side", CONV, Route.SIDE),
        LayerPlan("norm", NORM),
        LayerPlan("add", AddSpec(), Route.JOIN),
    ),
    "convolution output also used by a branch": (
        LayerPlan("first", CONV),
        LayerPlan("norm", NORM, Route.FORK),
        LayerPlan("add", AddSpec(), Route.JOIN),
    ),
    "at the start of a slice": (LayerPlan("norm", NORM), LayerPlan("conv", CONV)),
    "group norm": (
        LayerPlan("first", CONV),
        LayerPlan("norm", NormSpec(8, "group", groups=2, eps=1e-3, momentum=0.1)),
    ),
}


@pytest.mark.parametrize("layers", NOT_FOLDABLE.values(), ids=NOT_FOLDABLE)
def test_a_norm_that_does_not_follow_a_convolution_is_not_folded(layers: Layers) -> None:
    modules = with_random_statistics(layers)
    folded_layers, copies = fold_batch_norms(layers, modules)
    images = torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = Slice(layers, modules).eval()(images)
        outputs = Slice(folded_layers, copies).eval()(images)

    assert folded_layers == list(layers)
    assert all(torch.equal(item, other) for item, other in zip(outputs, expected, strict=True))
