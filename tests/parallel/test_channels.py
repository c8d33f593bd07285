"""Activations are sent to the next stage without a copy."""

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from convoy.config.schema import build_config
from convoy.layers.build import build_layers
from convoy.models.network import plan_network
from convoy.parallel.channels import P2PChannel, TensorSpec, to_strides
from convoy.parallel.slice import Slice, apply_route

CPU = torch.device("cpu")
FAMILIES = ("resnet50", "resnext14", "efficientnet-b0", "mobilenet", "mobilenet-v3-small")


class CompletedWork(dist.Work):
    """A transfer that is already complete."""

    def wait(self, timeout: object = None) -> bool:
        del timeout
        return True


class RecordingChannel(P2PChannel):
    """A channel that records the tensors it sends and receives."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        specs = [TensorSpec(shape) for shape in shapes]
        super().__init__(specs, specs, CPU, None, 0, 0)  # type: ignore[arg-type]  # needs no group
        self.sent: list[Tensor] = []
        self.received: list[Tensor] = []

    def _isend(self, tensor: Tensor) -> dist.Work:
        self.sent.append(tensor)
        return CompletedWork()

    def _irecv(self, tensor: Tensor) -> dist.Work:
        self.received.append(tensor.fill_(1))
        return CompletedWork()


def sent_tensors(*bundles: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that are sent for these bundles, without the header with their strides."""
    channel = RecordingChannel([tuple(item.shape) for item in bundles[0]])
    for bundle in bundles:
        channel.send(bundle)
    return [item for item in channel.sent if item.is_floating_point()]


def is_copy(tensor: Tensor, original: Tensor) -> bool:
    return tensor.data_ptr() != original.data_ptr()


def bundles_before_layers(model: str, training: bool) -> list[tuple[str, tuple[Tensor, ...]]]:
    """The tensors that a stage boundary before each layer would transfer."""
    config = build_config(
        {"model": model, "data": "synthetic", "image_size": 32, "num_classes": 10}
    )
    layers = plan_network(config).layers
    network = Slice(layers, build_layers(layers, seed=0)).train(training)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # incomplete stub
    bundle: tuple[Tensor, ...] = (torch.randn(2, 32, 32, 3).permute(0, 3, 1, 2),)
    found = []
    with torch.no_grad():
        for (name, layer), route in zip(network.layers.items(), network.routes, strict=True):
            found.append((name, bundle))
            bundle = apply_route(layer, route, tuple(item.clone() for item in bundle))
    return found


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("model", FAMILIES)
def test_no_activation_of_any_family_is_copied_at_a_boundary(model: str, training: bool) -> None:
    copied = [
        name
        for name, bundle in bundles_before_layers(model, training)
        for item, values in zip(sent_tensors(bundle), bundle, strict=True)
        if is_copy(item, values) or not item.is_contiguous()
    ]

    assert copied == []


PIXELS = torch.arange(24.0).view(2, 12, 1, 1)
ONE_PIXEL = [(12, 1, 1, 1), (12, 1, 12, 12), (12, 1, 7, 3)]  # strides of the same contiguous values


@pytest.mark.parametrize("first", ONE_PIXEL)
@pytest.mark.parametrize("later", ONE_PIXEL)
def test_strides_of_a_single_pixel_image_do_not_matter(
    first: tuple[int, ...], later: tuple[int, ...]
) -> None:
    earlier, values = (PIXELS.as_strided(PIXELS.shape, item) for item in (first, later))
    sent = sent_tensors((earlier,), (values,))[1]
    converted = to_strides(values, first)

    assert not is_copy(sent, values)
    assert not is_copy(converted, values)
    assert converted.stride() == first
    assert torch.equal(converted, PIXELS)


def test_later_bundles_are_converted_to_the_strides_of_the_first() -> None:
    first = torch.randn(2, 3, 4, 4)
    later = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    sent = sent_tensors((first,), (later,))[1]

    assert is_copy(sent, later)
    assert torch.equal(sent, later)


def test_expanded_tensors_are_made_dense() -> None:
    expanded = torch.randn(2, 3, 1, 1).expand(2, 3, 4, 4)
    (sent,) = sent_tensors((expanded,))

    assert sent.is_contiguous()
    assert sent.numel() == expanded.numel()


@pytest.mark.parametrize(
    "values",
    [torch.randn(4, 6)[:, ::2], torch.randn(3, 1).expand(3, 5), torch.randn(2, 8, 3)[:, 1:6]],
    ids=["every second column", "expanded", "a part of the rows"],
)
def test_gaps_in_tensors_of_any_dimension_are_not_sent(values: Tensor) -> None:
    (sent,) = sent_tensors((values,))

    assert sent.is_contiguous()
    assert torch.equal(sent, values)


def test_one_bundle_is_prefetched_once_its_strides_are_known() -> None:
    channel = RecordingChannel([(2, 3)])
    channel.prefetch()
    before = len(channel.received)
    channel.receive()
    first = len(channel.received)
    channel.prefetch()
    channel.prefetch()
    ahead = len(channel.received)
    channel.receive()

    assert (before, first, ahead, len(channel.received)) == (0, 2, 3, 3)


def test_a_batch_of_another_size_is_refused() -> None:
    with pytest.raises(AssertionError, match="pad the last batch"):
        RecordingChannel([(2, 3)]).send([torch.zeros(1, 3)])
