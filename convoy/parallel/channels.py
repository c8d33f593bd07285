"""Point-to-point channels that transfer bundles of tensors between neighboring stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.batch import Bundle
from convoy.planning.stages import StageBoundary

Strides = tuple[int, ...]


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


class P2PChannel:
    """A bidirectional channel between this process and the one with a neighboring stage.

    A kernel may sum in a different order if the strides of its input differ, so a tensor arrives
    with the strides it had at the sender. A header with the strides precedes the first bundle of
    each direction; all later bundles have the same strides. The transport needs contiguous memory,
    so it gets a view whose dimensions are permuted by stride, and nothing is copied.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        device: torch.device,
        group: dist.ProcessGroup,
        peer: int,  # rank in the group
        tag: int,  # distinguishes the boundaries between the same two processes
    ) -> None:
        self.shapes = tuple(shapes)
        self.device = device
        self.group = group
        self.peer = peer
        self.tag = tag
        self._sent_strides: list[Strides] = []
        self._received_strides: list[Strides] = []
        self._prefetched: Transfer | None = None

    def send(self, bundle: Sequence[Tensor]) -> Transfer:
        """Start to send a bundle, which may be freed when the transfer is complete."""
        shapes = tuple(tuple(tensor.shape) for tensor in bundle)
        assert shapes == self.shapes, f"{shapes} instead of {self.shapes}: pad the last batch"
        header = [] if self._sent_strides else [self._stride_header(bundle)]
        pairs = zip(bundle, self._sent_strides, strict=True)
        dense = (to_strides(tensor.detach(), strides) for tensor, strides in pairs)
        tensors = (*header, *map(_permute_by_stride, dense))
        return Transfer(tensors, [self._isend(tensor) for tensor in tensors])

    def prefetch(self) -> None:
        """Start to receive the next bundle, except for the first one, whose strides are unknown
        until `receive`."""
        if self._received_strides and self._prefetched is None:
            self._prefetched = self._start_receive()

    def receive(self) -> Bundle:
        """Receive the next bundle; blocks until it is complete."""
        if not self._received_strides:
            self._receive_strides()
        transfer = self._prefetched or self._start_receive()
        self._prefetched = None
        return transfer.wait()

    def _start_receive(self) -> Transfer:
        bundle = tuple(
            torch.empty_strided(shape, strides, device=self.device)
            for shape, strides in zip(self.shapes, self._received_strides, strict=True)
        )
        return Transfer(bundle, [self._irecv(_permute_by_stride(tensor)) for tensor in bundle])

    def _stride_header(self, bundle: Sequence[Tensor]) -> Tensor:
        """Record the strides of all bundles to be sent, and return them as one tensor."""
        self._sent_strides = [_make_dense(tensor).stride() for tensor in bundle]
        return torch.tensor([*sum(self._sent_strides, ())], device=self.device)

    def _receive_strides(self) -> None:
        dimensions = [len(shape) for shape in self.shapes]
        header = torch.empty(sum(dimensions), dtype=torch.int64, device=self.device)
        self._irecv(header).wait()
        strides = iter(header.tolist())
        self._received_strides = [tuple(islice(strides, count)) for count in dimensions]

    def _isend(self, tensor: Tensor) -> dist.Work:
        work = dist.isend(tensor, group=self.group, group_dst=self.peer, tag=self.tag)
        assert work is not None, "this process is not in the group"
        return work

    def _irecv(self, tensor: Tensor) -> dist.Work:
        work = dist.irecv(tensor, group=self.group, group_src=self.peer, tag=self.tag)
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
    upstream: P2PChannel | None = None
    downstream: P2PChannel | None = None
    sends_gradients: bool = False
    receives_gradients: bool = True


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
        upstream = P2PChannel(boundary.incoming, device, group, previous, tag=stage)
        downstream = P2PChannel(boundary.outgoing, device, group, following, tag=stage + 1)
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
