"""The road between two neighboring stages: bundles of tensors, sent and received in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.parallel.slice import Bundle

Group = dist.ProcessGroup
Size = tuple[int, ...]
Strides = tuple[int, ...]


@dataclass(frozen=True)
class Moving:
    """A bundle on its way out or in: not to be touched before it has arrived."""

    bundle: Bundle
    works: list[dist.Work]

    def wait(self) -> Bundle:
        """May be asked again; gloo would wait forever for what it has told once."""
        while self.works:
            self.works.pop(0).wait()
        return self.bundle


@dataclass(frozen=True)
class Road:
    """The border between two neighboring stages, as one of them sees it."""

    group: Group
    peer: int  # the neighbor's process, by its rank in the group
    border: int  # two processes may share several: what crosses one must not take another's place

    def send(self, tensor: Tensor) -> dist.Work | None:
        return dist.isend(tensor, group=self.group, group_dst=self.peer, tag=self.border)

    def receive(self, tensor: Tensor) -> dist.Work | None:
        return dist.irecv(tensor, group=self.group, group_src=self.peer, tag=self.border)


def roads_of(group: Group, stage: int) -> tuple[Road, Road]:
    """To the stage before and to the one after; at the two ends there is a road nobody uses."""
    processes = dist.get_world_size(group)
    return (
        Road(group, (stage - 1) % processes, stage),
        Road(group, (stage + 1) % processes, stage + 1),
    )


class Link:
    """The road to one neighbor, for bundles of fixed sizes.

    A kernel may add up in another order when its input lies in memory differently, so what arrives
    lies as it lay at the sender. The first bundle of each direction tells how; it is the same
    for all. The transport wants contiguous memory: the same bytes, seen with the dimensions in
    the order of their strides, so nothing is copied.
    """

    def __init__(self, sizes: tuple[Size, ...], device: torch.device, road: Road) -> None:
        self.sizes = sizes
        self.device = device
        self.road = road
        self._told: list[Strides] = []  # how bundles lie that we send
        self._heard: list[Strides] = []  # how bundles lie that we receive
        self._telling: Tensor | None = None

    def send(self, bundle: Sequence[Tensor]) -> Moving:
        works = [] if self._told else [self._tell(bundle)]
        given = zip(bundle, self._told, strict=True)
        ready = tuple(_in_order(laid(one.detach(), strides)) for one, strides in given)
        works += [self.road.send(one) for one in ready]
        return Moving(ready, _started(works))

    def receive(self) -> Moving:
        if not self._heard:
            self._hear()
        bundle = tuple(
            torch.empty_strided(size, strides, device=self.device)
            for size, strides in zip(self.sizes, self._heard, strict=True)
        )
        works = [self.road.receive(_in_order(one)) for one in bundle]
        return Moving(bundle, _started(works))

    def _tell(self, bundle: Sequence[Tensor]) -> dist.Work | None:
        assert tuple(tuple(one.shape) for one in bundle) == self.sizes
        self._told = [_dense(one).stride() for one in bundle]
        steps = [step for strides in self._told for step in strides]
        self._telling = torch.tensor(steps, device=self.device)  # must outlive its journey
        return self.road.send(self._telling)

    def _hear(self) -> None:
        dimensions = [len(size) for size in self.sizes]
        heard = torch.empty(sum(dimensions), dtype=torch.int64, device=self.device)
        for work in _started([self.road.receive(heard)]):
            work.wait()
        steps = iter(heard.tolist())
        self._heard = [tuple(islice(steps, count)) for count in dimensions]


def _started(works: Sequence[dist.Work | None]) -> list[dist.Work]:
    started = [work for work in works if work is not None]
    assert len(started) == len(works), "this process is not in the group"
    return started


def _in_order(tensor: Tensor) -> Tensor:
    """The dimensions from the longest stride to the shortest."""
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda one: -strides[one]))


def _dense(tensor: Tensor) -> Tensor:
    """Without holes and repetitions, which cannot travel."""
    if _in_order(tensor).is_contiguous():
        return tensor
    layout = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    return tensor.contiguous(memory_format=layout)


def laid(tensor: Tensor, strides: Strides) -> Tensor:
    """The same numbers in the order of these strides, unless these repeat themselves."""
    if tensor.stride() == strides or 0 in strides:
        return tensor
    if _differ_in_nothing(tensor, strides):
        return tensor.as_strided(tensor.shape, strides)
    return torch.empty_strided(tensor.shape, strides, device=tensor.device).copy_(tensor)


def _differ_in_nothing(tensor: Tensor, strides: Strides) -> bool:
    """Along a dimension of one, as an image of one pixel has them, a stride leads nowhere."""
    every = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(size == 1 or one == other for size, one, other in every)
