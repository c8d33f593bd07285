"""Channels that transfer bundles of tensors between stages, in one process or between two."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.batch import Bundle
from convoy.planning.stages import StageBoundary

Strides = tuple[int, ...]


class TensorSpec(NamedTuple):
    """What a receiver must know of a tensor before it arrives."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Transfer:
    """A bundle in flight. Its tensors must not be used before the transfer is complete."""

    bundle: Bundle
    works: list[dist.Work]

    def wait(self) -> Bundle:
        """Wait for each work once: gloo blocks forever on a second wait."""
        while self.works:
            self.works.pop(0).wait()
        return self.bundle


class StageChannel(Protocol):
    """A bidirectional channel to a neighboring stage: activations go down, gradients come back."""

    def send(self, bundle: Sequence[Tensor]) -> Transfer:
        """Start to send a bundle, which may be freed when the transfer is complete."""

    def prefetch(self) -> None:
        """Start to receive the next bundle, if possible."""

    def receive(self) -> Bundle:
        """Receive the next bundle."""


class LocalChannel:
    """One end of a channel between two stages of this process; create both with `local_pair`."""

    def __init__(
        self, device: torch.device, outgoing: deque[Bundle], incoming: deque[Bundle]
    ) -> None:
        """`device` is that of the stage at the other end."""
        self._device = device
        self._outgoing = outgoing
        self._incoming = incoming

    def send(self, bundle: Sequence[Tensor]) -> Transfer:
        self._outgoing.append(tuple(tensor.detach().to(self._device) for tensor in bundle))
        return Transfer((), [])

    def prefetch(self) -> None:
        """Nothing to do: a bundle arrives when it is sent."""

    def receive(self) -> Bundle:
        return self._incoming.popleft()


def local_pair(
    upstream_device: torch.device, downstream_device: torch.device
) -> tuple[LocalChannel, LocalChannel]:
    """The downstream channel of a stage and the upstream channel of the next one."""
    activations, gradients = deque[Bundle](), deque[Bundle]()
    return (
        LocalChannel(downstream_device, activations, gradients),
        LocalChannel(upstream_device, gradients, activations),
    )


class BroadcastChannel:
    """The downstream channels of a stage whose outputs several concurrent stages receive."""

    def __init__(self, channels: Sequence[StageChannel]) -> None:
        self.channels = channels

    def send(self, bundle: Sequence[Tensor]) -> Transfer:
        return _combine([channel.send(bundle) for channel in self.channels])

    def prefetch(self) -> None:
        for channel in self.channels:
            channel.prefetch()

    def receive(self) -> Bundle:
        """The sum of the gradients, added in the order of autograd: the last branch first."""
        first, *others = [channel.receive() for channel in self.channels][::-1]
        for other in others:
            first = tuple(total + gradient for total, gradient in zip(first, other, strict=True))
        return first


class JoinChannel:
    """The upstream channels of a stage that receives the outputs of several concurrent stages."""

    def __init__(self, channels: Sequence[StageChannel], gradient_counts: Sequence[int]) -> None:
        """`gradient_counts` is the number of gradients that each of them receives."""
        self.channels = channels
        self.gradient_counts = gradient_counts

    def send(self, bundle: Sequence[Tensor]) -> Transfer:
        parts = iter(bundle)
        counted = zip(self.channels, self.gradient_counts, strict=True)
        sent = [(channel, [*islice(parts, count)]) for channel, count in counted]
        return _combine([channel.send(part) for channel, part in sent if part])

    def prefetch(self) -> None:
        for channel in self.channels:
            channel.prefetch()

    def receive(self) -> Bundle:
        return tuple(tensor for channel in self.channels for tensor in channel.receive())


def _combine(transfers: Sequence[Transfer]) -> Transfer:
    bundle = tuple(tensor for transfer in transfers for tensor in transfer.bundle)
    return Transfer(bundle, [work for transfer in transfers for work in transfer.works])


class P2PChannel:
    """A bidirectional channel between this process and the one with a neighboring stage.

    A kernel may sum in a different order if the strides of its input differ, so a tensor arrives
    with the strides it had at the sender. A header with the strides precedes the first bundle of
    each direction; all later bundles have the same strides. The transport needs contiguous memory,
    so it gets a view whose dimensions are permuted by stride, and nothing is copied.
    """

    def __init__(
        self,
        sent: Iterable[TensorSpec],
        received: Iterable[TensorSpec],
        device: torch.device,
        group: dist.ProcessGroup,
        peer: int,  # rank in the group
        tag: int,  # distinguishes the boundaries between the same two processes
    ) -> None:
        self.sent_specs = tuple(sent)
        self.received_specs = tuple(received)
        self.device = device
        self.group = group
        self.peer = peer
        self.tag = tag
        self._sent_strides: list[Strides] | None = None
        self._received_strides: list[Strides] | None = None
        self._prefetched: Transfer | None = None

    def send(self, bundle: Sequence[Tensor]) -> Transfer:
        specs = tuple(TensorSpec(tuple(tensor.shape), tensor.dtype) for tensor in bundle)
        assert specs == self.sent_specs, (
            f"expected {self.sent_specs}, got {specs}: pad the last batch"
        )
        header = []
        if self._sent_strides is None:
            self._sent_strides = [_make_dense(tensor).stride() for tensor in bundle]
            header.append(self._stride_header(self._sent_strides))
        pairs = zip(bundle, self._sent_strides, strict=True)
        dense = (to_strides(tensor.detach(), strides) for tensor, strides in pairs)
        tensors = (*header, *map(_permute_by_stride, dense))
        return Transfer(tensors, [self._isend(tensor) for tensor in tensors])

    def prefetch(self) -> None:
        """Start to receive the next bundle, except for the first one, whose strides are unknown
        until `receive`."""
        if self._received_strides is not None and self._prefetched is None:
            self._prefetched = self._start_receive(self._received_strides)

    def receive(self) -> Bundle:
        """Receive the next bundle; blocks until it is complete."""
        if self._received_strides is None:
            self._received_strides = self._receive_strides()
        transfer = self._prefetched or self._start_receive(self._received_strides)
        self._prefetched = None
        return transfer.wait()

    def _start_receive(self, all_strides: Sequence[Strides]) -> Transfer:
        bundle = tuple(
            torch.empty_strided(spec.shape, strides, dtype=spec.dtype, device=self.device)
            for spec, strides in zip(self.received_specs, all_strides, strict=True)
        )
        return Transfer(bundle, [self._irecv(_permute_by_stride(tensor)) for tensor in bundle])

    def _stride_header(self, all_strides: Sequence[Strides]) -> Tensor:
        """The strides of all bundles to be sent as one tensor, which is never empty."""
        return torch.tensor([len(all_strides), *sum(all_strides, ())], device=self.device)

    def _receive_strides(self) -> list[Strides]:
        dimensions = [len(spec.shape) for spec in self.received_specs]
        header = torch.empty(1 + sum(dimensions), dtype=torch.int64, device=self.device)
        self._irecv(header).wait()
        strides = iter(header[1:].tolist())
        return [tuple(islice(strides, count)) for count in dimensions]

    def _isend(self, tensor: Tensor) -> dist.Work:
        work = dist.isend(_sendable(tensor), group=self.group, group_dst=self.peer, tag=self.tag)
        assert work is not None, "this process is not in the group"
        return work

    def _irecv(self, tensor: Tensor) -> dist.Work:
        work = dist.irecv(_sendable(tensor), group=self.group, group_src=self.peer, tag=self.tag)
        assert work is not None, "this process is not in the group"
        return work


@dataclass(frozen=True)
class StageChannels:
    """A stage and its channels. The first stage has no upstream, the last no downstream.

    Gradients cross a boundary unless no layer before it is trained. The last stage gets its
    gradients from the loss.
    """

    stage: int = 0
    stages: int = 1
    upstream: StageChannel | None = None
    downstream: StageChannel | None = None
    sends_gradients: bool = False
    receives_gradients: bool = True
    # Indices of the inputs and outputs that have gradients; None means all.
    inputs_with_gradients: tuple[int, ...] | None = None
    outputs_with_gradients: tuple[int, ...] | None = None


def connect(
    boundaries: Sequence[StageBoundary], group: dist.ProcessGroup | None, device: torch.device
) -> list[StageChannels]:
    """Create the channels of this process. Of P processes, process p has the stages p, p + P, …

    Without a group this process has the only stage.
    """
    if group is None:
        return [StageChannels()]
    rank, processes = group.rank(), group.size()
    stages = processes * len(boundaries)
    channels = []
    for stage, boundary in zip(range(rank, stages, processes), boundaries, strict=True):
        previous, following = (rank - 1) % processes, (rank + 1) % processes
        incoming, outgoing = map(_specs, (boundary.incoming, boundary.outgoing))
        upstream = P2PChannel(incoming, incoming, device, group, previous, tag=stage)
        downstream = P2PChannel(outgoing, outgoing, device, group, following, tag=stage + 1)
        channels.append(
            StageChannels(
                stage,
                stages,
                upstream if stage > 0 else None,
                downstream if stage < stages - 1 else None,
                boundary.sends_gradients,
                boundary.receives_gradients,
            )
        )
    return channels


def _specs(shapes: Iterable[tuple[int, ...]]) -> list[TensorSpec]:
    return [TensorSpec(shape) for shape in shapes]


def _sendable(tensor: Tensor) -> Tensor:
    """A view in a dtype that the transport supports."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor


def _permute_by_stride(tensor: Tensor) -> Tensor:
    """Permute the dimensions from the largest stride to the smallest."""
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))


def _make_dense(tensor: Tensor) -> Tensor:
    """Remove gaps and repeated memory, which cannot be sent."""
    if _permute_by_stride(tensor).is_contiguous():
        return tensor
    layout = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    return tensor.contiguous(memory_format=layout)


def to_strides(tensor: Tensor, strides: Strides) -> Tensor:
    """Return the same values with these strides; strides of 0, as from `expand`, are ignored."""
    if tensor.stride() == strides or 0 in strides:
        return tensor
    dimensions = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if all(size == 1 or current == target for size, current, target in dimensions):
        # The stride of a dimension of size 1 is irrelevant.
        return tensor.as_strided(tensor.shape, strides)
    return torch.empty_strided(tensor.shape, strides, device=tensor.device).copy_(tensor)
