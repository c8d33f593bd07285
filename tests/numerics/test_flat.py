"""Weights as views into one vector: same numbers, same strides, room between them that stays 0."""

import pytest
import torch
from support.networks import build_slice, images_and_labels, small_layers
from torch import nn

from convoy.numerics.flat import ALIGNMENT, FlatParameters


def weights() -> dict[str, nn.Parameter]:
    chance = torch.Generator().manual_seed(0)
    shapes = {"bn": (7,), "conv": (4, 3, 3, 3), "fc": (2, 5), "scale": (), "bias": (16,)}
    named = {name: torch.randn(shape, generator=chance) for name, shape in shapes.items()}
    named["conv"] = named["conv"].to(memory_format=torch.channels_last)
    return {name: nn.Parameter(tensor) for name, tensor in named.items()}


def test_weights_preserve_values_shapes_and_strides() -> None:
    named, twins = weights(), weights()
    FlatParameters(named)

    for name, twin in twins.items():
        assert torch.equal(named[name], twin)
        assert named[name].stride() == twin.stride()
        assert named[name].is_leaf and named[name].requires_grad


def test_weights_are_views_of_the_vector() -> None:
    named = weights()
    flat = FlatParameters(named)
    flat.values.fill_(3.0)

    assert all(bool((weight == 3).all()) for weight in named.values())


def test_weights_are_aligned_and_do_not_overlap() -> None:
    flat = FlatParameters(weights())
    counted = torch.zeros(flat.elements)
    for view in flat.views(counted):
        view.add_(1)

        assert view.storage_offset() % ALIGNMENT == 0
    assert counted.max() == 1
    assert int(counted.sum()) == sum(weight.numel() for weight in flat.weights.values())
    assert flat.elements == 16 + 112 + 16 + 16 + 16


def test_weights_of_several_dimensions_come_first() -> None:
    flat = FlatParameters(weights())
    decaying = [view.storage_offset() < flat.decayed_elements for view in flat.views(flat.values)]

    assert flat.decayed_elements == 112 + 16
    assert decaying == [weight.dim() > 1 for weight in flat.weights.values()]


def test_names_and_order_are_those_of_the_weights() -> None:
    flat = FlatParameters(weights())

    assert list(flat.named_views(flat.values)) == list(weights())
    assert [tuple(view.shape) for view in flat.views(flat.values)] == [
        tuple(weight.shape) for weight in weights().values()
    ]


def test_flattening_named_tensors_restores_the_vector() -> None:
    flat = FlatParameters(weights())
    again = flat.flatten(
        {name: item.clone() for name, item in flat.named_views(flat.values).items()}
    )

    assert torch.equal(again, flat.values)


def test_a_network_computes_the_same_bits_from_views() -> None:
    plain, viewed = build_slice(small_layers()), build_slice(small_layers())
    FlatParameters(viewed.named_weights())
    images, _ = images_and_labels(4, 8)
    for network in (plain, viewed):
        network(images)[0].square().sum().backward()

    assert torch.equal(plain(images)[0], viewed(images)[0])
    for item, other in zip(plain.parameters(), viewed.parameters(), strict=True):
        assert item.grad is not None and other.grad is not None
        assert torch.equal(item.grad, other.grad)


def test_a_stage_without_weights_is_an_empty_vector() -> None:
    flat = FlatParameters({})

    assert (flat.elements, flat.decayed_elements, flat.views(flat.values)) == (0, 0, [])


def test_a_weight_with_gaps_is_refused() -> None:
    gaps = nn.Parameter(torch.zeros(4, 6)[:, ::2])

    with pytest.raises(AssertionError, match="gaps"):
        FlatParameters({"gaps": gaps})


def test_weights_of_two_dtypes_are_refused() -> None:
    mixed = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2).double())}

    with pytest.raises(AssertionError, match="differ in dtype or device"):
        FlatParameters(mixed)


def test_a_frozen_weight_stays_where_it_is() -> None:
    named = weights()
    name = next(iter(named))
    named[name].requires_grad_(False)
    place = named[name].data_ptr()
    flat = FlatParameters(named)

    assert flat.frozen.keys() == {name}
    assert flat.weights.keys() == named.keys() - {name}
    assert named[name].data_ptr() == place
    assert flat.named_views(flat.values).keys() == flat.weights.keys()
