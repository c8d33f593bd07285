"""Point-to-point channels between neighboring pipeline stages: bundles of tensors, in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.batch import Bundle
from convoy.plan.stages import StageBoundary

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """A bundle being sent or received. Its tensors may not be used before it is complete."""

    bundle: Bundle
    works: list[dist.Work]

    def wait(self) -> Bundle:
        """May be called again: gloo would block forever on a work that was waited for before."""
        while self.works:
            self.works.pop(0).wait()
        return self.bundle


class P2PChannel:
    """Both directions between this process and the one that holds a neighboring stage.

    A kernel may sum in another order when the strides of its input differ, so a tensor arrives with
    the strides that it had at the sender. The first bundle of a direction is preceded by its
    strides, which all later ones share. The transport needs contiguous memory, so it is handed a
    view with the dimensions in the order of their strides, and nothing is copied.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        device: torch.device,
        group: dist.ProcessGroup,
        peer: int,  # rank in the group
        tag: int,  # two processes may share several boundaries; each has its own tag
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
        """Start to send a bundle; it may be freed when the transfer is complete."""
        shapes = tuple(tuple(tensor.shape) for tensor in bundle)
        assert shapes == self.shapes, f"{shapes} instead of {self.shapes}: pad the last batch"
        header = [] if self._sent_strides else [self._describe(bundle)]
        pairs = zip(bundle, self._sent_strides, strict=True)
        views = tuple(_by_stride(with_strides(tensor.detach(), one)) for tensor, one in pairs)
        return Transfer((*header, *views), [self._isend(one) for one in (*header, *views)])

    def prefetch(self) -> None:
        """Start to receive the next bundle. The first one has unknown strides, so it has to wait
        for `receive`."""
        if self._received_strides and self._prefetched is None:
            self._prefetched = self._start()

    def receive(self) -> Bundle:
        """The next bundle; blocks until it is here."""
        if not self._received_strides:
            self._receive_strides()
        transfer = self._prefetched or self._start()
        self._prefetched = None
        return transfer.wait()

    def _start(self) -> Transfer:
        bundle = tuple(
            torch.empty_strided(shape, strides, device=self.device)
            for shape, strides in zip(self.shapes, self._received_strides, strict=True)
        )
        return Transfer(bundle, [self._irecv(_by_stride(tensor)) for tensor in bundle])

    def _describe(self, bundle: Sequence[Tensor]) -> Tensor:
        """The strides of everything sent from now on, as one tensor."""
        self._sent_strides = [_dense(tensor).stride() for tensor in bundle]
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
    """The place of a stage in the pipeline. The first has no upstream, the last no downstream.

    Gradients cross a boundary unless nothing before it is trained. The last stage receives its
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
    """The channels of this process's stages. Of P processes, process p holds the stages p, p + P, …

    Without a group this process holds the only stage.
    """
    if group is None:
        return [StageChannels()]
    rank, processes = group.rank(), group.size()
    stages = processes * len(boundaries)
    channels = []
    for stage, boundary in zip(range(rank, stages, processes), boundaries, strict=True):
        before, after = (rank - 1) % processes, (rank + 1) % processes
        upstream = P2PChannel(boundary.incoming, device, group, before, tag=stage)
        downstream = P2PChannel(boundary.outgoing, device, group, after, tag=stage + 1)
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


def _by_stride(tensor: Tensor) -> Tensor:
    """The dimensions from the longest stride to the shortest."""
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))


def _dense(tensor: Tensor) -> Tensor:
    """Without gaps and repetitions, which cannot be sent."""
    if _by_stride(tensor).is_contiguous():
        return tensor
    layout = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    return tensor.contiguous(memory_format=layout)


def with_strides(tensor: Tensor, strides: Strides) -> Tensor:
    """The same values in memory of these strides; strides of 0, as of `expand`, are not taken."""
    if tensor.stride() == strides or 0 in strides:
        return tensor
    dimensions = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if all(size == 1 or current == wanted for size, current, wanted in dimensions):
        return tensor.as_strided(tensor.shape, strides)  # the stride of a size of 1 has no meaning
    return torch.empty_strided(tensor.shape, strides, device=tensor.device).copy_(tensor)
