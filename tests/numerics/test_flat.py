"""Weights are views of one vector, with their values and strides and zero padding between them."""

import pytest
import torch
from support.networks import build_slice, images_and_labels, small_layers
from torch import nn

from convoy.numerics.flat import ALIGNMENT, FlatParameters


def weights() -> dict[str, nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    shapes = {"bn": (7,), "conv": (4, 3, 3, 3), "fc": (2, 5), "scale": (), "bias": (16,)}
    named = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    named["conv"] = named["conv"].to(memory_format=torch.channels_last)
    return {name: nn.Parameter(tensor) for name, tensor in named.items()}


def test_weights_preserve_values_shapes_and_strides() -> None:
    named, originals = weights(), weights()
    FlatParameters(named)

    for name, original in originals.items():
        assert torch.equal(named[name], original)
        assert named[name].stride() == original.stride()
        assert named[name].is_leaf and named[name].requires_grad


def test_weights_are_views_of_the_vector() -> None:
    named = weights()
    flat = FlatParameters(named)
    flat.values.fill_(3.0)

    assert all(bool((weight == 3).all()) for weight in named.values())


def test_weights_are_aligned_and_do_not_overlap() -> None:
    flat = FlatParameters(weights())
    counts = torch.zeros(flat.numel)
    for view in flat.views(counts):
        view.add_(1)

        assert view.storage_offset() % ALIGNMENT == 0
    assert counts.max() == 1
    assert int(counts.sum()) == sum(weight.numel() for weight in flat.weights.values())
    assert flat.numel == 16 + 112 + 16 + 16 + 16


def test_weights_of_several_dimensions_come_first() -> None:
    flat = FlatParameters(weights())
    decaying = [view.storage_offset() < flat.decayed_numel for view in flat.views(flat.values)]

    assert flat.decayed_numel == 112 + 16
    assert decaying == [weight.dim() > 1 for weight in flat.weights.values()]


def test_names_and_order_match_the_weights() -> None:
    flat = FlatParameters(weights())

    assert list(flat.named_views(flat.values)) == list(weights())
    assert [tuple(view.shape) for view in flat.views(flat.values)] == [
        tuple(weight.shape) for weight in weights().values()
    ]


def test_flattening_named_tensors_restores_the_vector() -> None:
    flat = FlatParameters(weights())
    restored = flat.flatten(
        {name: item.clone() for name, item in flat.named_views(flat.values).items()}
    )

    assert torch.equal(restored, flat.values)


def test_a_network_computes_the_same_bits_from_views() -> None:
    plain, viewed = build_slice(small_layers()), build_slice(small_layers())
    FlatParameters(viewed.named_weights())
    images, _ = images_and_labels(4, 8)
    for network in (plain, viewed):
        network(images)[0].square().sum().backward()

    assert torch.equal(plain(images)[0], viewed(images)[0])
    for ours, theirs in zip(plain.parameters(), viewed.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def test_a_stage_without_weights_is_an_empty_vector() -> None:
    flat = FlatParameters({})

    assert (flat.numel, flat.decayed_numel, flat.views(flat.values)) == (0, 0, [])


def test_a_weight_with_gaps_is_refused() -> None:
    gaps = nn.Parameter(torch.zeros(4, 6)[:, ::2])

    with pytest.raises(AssertionError, match="dense"):
        FlatParameters({"gaps": gaps})


def test_weights_of_two_dtypes_are_refused() -> None:
    mixed = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2).double())}

    with pytest.raises(AssertionError, match="differ in dtype or device"):
        FlatParameters(mixed)


def test_a_frozen_weight_is_not_moved() -> None:
    named = weights()
    name = next(iter(named))
    named[name].requires_grad_(False)
    address = named[name].data_ptr()
    flat = FlatParameters(named)

    assert flat.frozen.keys() == {name}
    assert flat.weights.keys() == named.keys() - {name}
    assert named[name].data_ptr() == address
    assert flat.named_views(flat.values).keys() == flat.weights.keys()
