"""Carries out an update rule on the flat weights of one dtype policy, block by block."""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor

from convoy.errors import StorageError
from convoy.numerics.flat import ALIGNMENT, FlatWeights, Stretch
from convoy.numerics.precision import DtypePolicy, Rounder, UpdatedElements
from convoy.optim.update_rules import (
    Block,
    Norms,
    StepContext,
    UpdateRule,
    norms_of,
    row_squares,
)


class StateStorage:
    """Allocates vectors, and may free their memory while nothing works with them.

    Here state stays where the weights are.
    """

    def vector(self, elements: int, like: Tensor) -> Tensor:
        """Zeros with the dtype of `like`."""
        return torch.zeros(elements, dtype=like.dtype, device=like.device)

    def evict(self) -> None:
        """The update is done; the vectors are not needed until the next one."""


class MappedFile(StateStorage):
    """State in a file that is mapped into memory and dropped from it between updates.

    The file has no name, so it is gone with the process, however that ends. Its pages stay in the
    system's cache while there is room; the system writes them out when there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps: list[mmap.mmap] = []

    def vector(self, elements: int, like: Tensor) -> Tensor:
        """Zeros in a file of their own."""
        size = elements * like.element_size()
        if not size:
            return torch.zeros(0, dtype=like.dtype)
        mapped = self._map(size)
        self._maps.append(mapped)
        return torch.frombuffer(mapped, dtype=like.dtype)

    def _map(self, size: int) -> mmap.mmap:
        """Reserves the space: a full disk must be an error here, not a crash in an update."""
        try:
            with TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise StorageError(
                f"{self.folder} cannot take {size:,} bytes of optimizer state: {error.strerror}; "
                "make room there or leave --offload-optimizer out"
            ) from None

    def evict(self) -> None:
        """Give the memory back; what was written stays in the file."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class HostMemory(StateStorage):
    """State in the host's memory while the weights are on an accelerator.

    The optimizer copies it block by block. With CUDA the memory is pinned, so that the device reads
    it without help; that branch has not run yet, for want of such a device.
    """

    def vector(self, elements: int, like: Tensor) -> Tensor:
        pinned = torch.cuda.is_available()
        return torch.zeros(elements, dtype=like.dtype, device="cpu", pin_memory=pinned)


def storage_for(device: torch.device, offloaded: bool, folder: Path) -> StateStorage:
    """State stays with the weights unless `--offload-optimizer` says otherwise."""
    if not offloaded:
        return StateStorage()
    return MappedFile(folder) if device.type == "cpu" else HostMemory()


# Elements of one pass: gradient, weights and state of a block stay in the cache between its
# operations, and offloaded state comes in block by block.
BLOCK = 1 << 17


def _itself(vector: Tensor) -> Tensor:
    return vector


@dataclass(frozen=True)
class Shard:
    """The part of the vector that is updated here, and how the shards' rows are gathered."""

    elements: range
    gather_rows: Callable[[Tensor], Tensor] = _itself  # our rows → those of the whole vector


class Optimizer:
    """Updates the weights of one dtype policy; with sharding, a range of them."""

    def __init__(
        self,
        flat: FlatWeights,
        rule: UpdateRule,
        shard: Shard | None = None,  # None is everything
        storage: StateStorage | None = None,
        policy: DtypePolicy | None = None,
        rounder: Rounder | None = None,
    ) -> None:
        self.flat = flat
        self.rule = rule
        shard = shard or Shard(range(flat.elements))
        self.owned, self._gather_rows = shard.elements, shard.gather_rows
        self.storage = storage or StateStorage()
        self.policy = policy or DtypePolicy()
        self.rounder = rounder or Rounder()
        self._measured = [name for name in flat.weights if name in rule.measured]
        self._stretches = flat.stretches() if self._measured else flat.regions()
        self._used = self._shard_of(flat.values)  # the weights that layers compute with
        self.slots = {slot: self._slot(first) for slot, first in rule.slots.items()}
        self.master: Tensor | None = None
        if self.policy.has_master:
            self.master = self.storage.vector(len(self.owned), flat.values).copy_(self._used)
        frozen = flat.frozen if self.policy.has_master else {}
        self.frozen_masters = {name: one.detach().clone() for name, one in frozen.items()}
        self.round_weights()

    def _slot(self, first: float) -> Tensor:
        like = self._used.new_empty(0, dtype=self.policy.state.dtype)
        vector = self.storage.vector(len(self.owned), like)
        return vector.fill_(first) if first else vector

    def _shard_of(self, vector: Tensor) -> Tensor:
        return vector[self.owned.start : self.owned.stop]

    @torch.no_grad()
    def round_weights(self) -> None:
        """New weights were loaded: round them to the type that layers compute with."""
        for values in (self.flat.values, *self.flat.frozen.values()):
            values.copy_(self.policy.compute.nearest(values))

    @torch.no_grad()
    def step(self, gradient: Tensor, context: StepContext) -> None:
        """Change the owned weights. The gradient, of the owned range, is used up."""
        assert len(gradient) == len(self.owned)
        if context.scale != 1:
            gradient.div_(context.scale)
        norms = self._measure(gradient) if self._measured else {}
        for piece, stretch in self._pieces():
            self._step_piece(gradient[piece], piece, stretch, norms, context)
        self.storage.evict()

    def _pieces(self) -> Iterator[tuple[slice, Stretch]]:
        """Blocks of the owned range, each within one stretch."""
        for stretch in self._stretches:
            start = max(0, stretch.elements.start - self.owned.start)
            stop = min(stretch.elements.stop - self.owned.start, len(self.owned))
            for first in range(start, stop, BLOCK):
                yield slice(first, min(first + BLOCK, stop)), stretch

    def _measure(self, gradient: Tensor) -> dict[str | None, Norms]:
        """The norms of whole weights, and of their gradients once the decay has joined these.

        All owners come here at the same time.
        """
        rows = gradient.new_zeros(len(self.owned) // ALIGNMENT, 2, dtype=torch.float64)
        for piece, stretch in self._pieces():
            weight = self._weight(piece)
            self._add_decay(gradient[piece], weight, stretch)
            some = rows[piece.start // ALIGNMENT : piece.stop // ALIGNMENT]
            some[:, 0] = row_squares(weight)
            some[:, 1] = row_squares(gradient[piece])
        whole = self._gather_rows(rows)
        extents = {one.name: one.elements for one in self._stretches}
        return {
            name: norms_of(whole[extent.start // ALIGNMENT : extent.stop // ALIGNMENT])
            for name, extent in extents.items()
            if name in self._measured
        }

    def _add_decay(self, gradient: Tensor, weight: Tensor, stretch: Stretch) -> None:
        if self.rule.decay and stretch.decays:
            gradient.add_(weight, alpha=self.rule.decay)

    def _weight(self, piece: slice) -> Tensor:
        """The master, or the weight itself where there is none, on the device of the network."""
        used = self._used[piece]
        return used if self.master is None else self.master[piece].to(used.device)

    def _step_piece(
        self,
        gradient: Tensor,
        piece: slice,
        stretch: Stretch,
        norms: Mapping[str | None, Norms],
        context: StepContext,
    ) -> None:
        used, weight = self._used[piece], self._weight(piece)
        # As 32-bit numbers where the weights are: itself, if it is that already.
        state = {slot: one[piece].to(used) for slot, one in self.slots.items()}
        if not self._measured:
            self._add_decay(gradient, weight, stretch)
        found = norms.get(stretch.name)
        self.rule.apply(Block(weight, gradient, state, stretch.decays, found), context)
        start = self.owned.start
        updated = UpdatedElements(range(start + piece.start, start + piece.stop), context.update)
        for slot, vector in self.slots.items():
            # torch does nothing if the two are the same
            vector[piece].copy_(self.rounder.round(state[slot], self.policy.state, slot, updated))
        stored = used if self.master is None else self.master[piece]
        stored.copy_(self.rounder.round(weight, self.policy.param, "weight", updated))
        if self.master is not None:
            used.copy_(self.policy.compute.nearest(weight))

    def named_state(self, gather: Callable[[Tensor], Tensor] = _itself) -> dict[str, Tensor]:
        """The state as a checkpoint names it; `gather` makes whole vectors of shards.

        A frozen weight has never changed: its state is the initial one, so that a later phase may
        train it.
        """
        state: dict[str, Tensor] = {}
        for slot, vector in self.slots.items():
            named = self.flat.named(gather(vector))
            for name, frozen in self.flat.frozen.items():
                first, dtype = self.rule.slots[slot], self.policy.state.dtype
                named[name] = torch.full_like(frozen, first, dtype=dtype)
            state |= {f"{name}/{slot}": tensor for name, tensor in named.items()}
        return state

    def named_masters(self, gather: Callable[[Tensor], Tensor] = _itself) -> dict[str, Tensor]:
        """The master weights, if there are any."""
        if self.master is None:
            return {}
        return {**self.flat.named(gather(self.master)), **self.frozen_masters}

    def named_form(self) -> dict[str, Tensor]:
        """Shapes and types of `named_state`, without values."""
        return self.named_state(lambda part: part.new_empty(self.flat.elements, device="meta"))

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over our shard of a checkpoint's state."""
        for slot, vector in self.slots.items():
            whole = self.flat.flatten({name: state[f"{name}/{slot}"] for name in self.flat.weights})
            vector.copy_(self._shard_of(whole))
        self.storage.evict()

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights of the type in which they are stored."""
        whole = self.flat.flatten(weights)
        if self.master is not None:
            self.master.copy_(self._shard_of(whole))
        self.flat.values.copy_(whole)
        for name, one in {**self.flat.frozen, **self.frozen_masters}.items():
            one.copy_(weights[name])
        self.round_weights()
        self.storage.evict()
