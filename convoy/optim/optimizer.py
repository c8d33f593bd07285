"""Optimizer: applies an update rule to the flat parameters of one dtype policy, in blocks."""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch import Tensor

from convoy.errors import StorageError
from convoy.numerics.flat import ALIGNMENT, FlatParameters, FlatRange
from convoy.numerics.precision import DtypePolicy, ElementRange, Rounder
from convoy.optim.update_rules import (
    ParameterBlock,
    ParamNorms,
    StepContext,
    UpdateRule,
    euclidean_norms,
    row_sums_of_squares,
)


class StateStorage:
    """Allocates optimizer state and may evict it from memory between updates.

    This default keeps the state on the device of the weights.
    """

    def zeros(self, elements: int, like: Tensor) -> Tensor:
        """Allocate zeros with the dtype and device of `like`."""
        return torch.zeros(elements, dtype=like.dtype, device=like.device)

    def evict(self) -> None:
        """Free memory: the state is not needed until the next update."""


class MmapStorage(StateStorage):
    """State in memory-mapped files whose pages are released between updates.

    The files are unlinked, so they disappear with the process, however it ends. Their pages stay in
    the page cache until the system needs the memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps: list[mmap.mmap] = []

    def zeros(self, elements: int, like: Tensor) -> Tensor:
        """Allocate zeros in a new file."""
        size = elements * like.element_size()
        if not size:
            return torch.zeros(0, dtype=like.dtype)
        mapped = self._map(size)
        self._maps.append(mapped)
        return torch.frombuffer(mapped, dtype=like.dtype)

    def _map(self, size: int) -> mmap.mmap:
        """Map a new file with reserved space: a full disk must fail here, not crash an update."""
        try:
            with TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise StorageError(
                f"{self.folder}: cannot store {size:,} bytes of optimizer state: {error.strerror}; "
                "free some space there or omit --offload-optimizer"
            ) from None

    def evict(self) -> None:
        """Release the pages; their content stays in the file."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class PinnedHostStorage(StateStorage):
    """State in host memory while the weights are on an accelerator.

    The optimizer copies it block by block. With CUDA the memory is pinned; that branch is untested
    because no such device was available.
    """

    def zeros(self, elements: int, like: Tensor) -> Tensor:
        pinned = torch.cuda.is_available()
        return torch.zeros(elements, dtype=like.dtype, device="cpu", pin_memory=pinned)


def make_state_storage(device: torch.device, offloaded: bool, folder: Path) -> StateStorage:
    """Choose where optimizer state lives; see `--offload-optimizer`."""
    if not offloaded:
        return StateStorage()
    return MmapStorage(folder) if device.type == "cpu" else PinnedHostStorage()


# Elements per block: small enough that gradient, weights and state stay in the cache between
# operations, and that offloaded state is paged in gradually.
BLOCK_SIZE = 1 << 17


def _identity(vector: Tensor) -> Tensor:
    return vector


@dataclass(frozen=True)
class OptimizerShard:
    """The range of the flat vector that this rank updates, and how to gather all shards.

    All ranks must gather together.
    """

    elements: range
    gather_rows: Callable[[Tensor], Tensor] = _identity  # local rows → rows of the full vector
    gather_vector: Callable[[Tensor], Tensor] = _identity  # local elements → the full vector


class Optimizer:
    """Updates the weights of one dtype policy; with sharding, this rank's range of them."""

    def __init__(
        self,
        flat: FlatParameters,
        rule: UpdateRule,
        shard: OptimizerShard | None = None,  # None: the full vector
        storage: StateStorage | None = None,
        policy: DtypePolicy | None = None,
        rounder: Rounder | None = None,
    ) -> None:
        self.flat_params = flat
        self.rule = rule
        shard = shard or OptimizerShard(range(flat.numel))
        self.shard_range, self._gather_rows = shard.elements, shard.gather_rows
        self.gather_vector = shard.gather_vector
        self.storage = storage or StateStorage()
        self.policy = policy or DtypePolicy()
        self.rounder = rounder or Rounder()
        params = flat.parameter_ranges()
        self._normed_params = {
            param.name: param.elements for param in params if param.name in rule.layer_adapted
        }
        ranges = params if self._normed_params else flat.decay_regions()
        self._block_slices = [*self._split_into_blocks(ranges)]
        self._compute_weights = self._shard_of(flat.values)  # used by the layers
        state = self._compute_weights.new_empty(0, dtype=self.policy.state.dtype)
        self.slots = {slot: self.storage.zeros(len(self.shard_range), state) for slot in rule.slots}
        for slot, initial in rule.slots.items():
            if initial:  # zeros need no write, so their pages stay untouched
                self.slots[slot].fill_(initial)
        # As saved in checkpoints; the compute weights themselves if there is no master copy.
        self.master_weights = self._compute_weights
        self.frozen_masters: dict[str, Tensor] = {}
        if self.policy.has_master:
            self.master_weights = self.storage.zeros(len(self.shard_range), flat.values).copy_(
                self._compute_weights
            )
            self.frozen_masters = {name: t.detach().clone() for name, t in flat.frozen.items()}
        self.round_weights()

    def _shard_of(self, vector: Tensor) -> Tensor:
        return vector[self.shard_range.start : self.shard_range.stop]

    @torch.no_grad()
    def round_weights(self) -> None:
        """Round newly loaded weights to the compute dtype."""
        for values in (self.flat_params.values, *self.flat_params.frozen.values()):
            values.copy_(self.policy.compute.round_nearest(values))

    @torch.no_grad()
    def step(self, gradient: Tensor, context: StepContext) -> None:
        """Update this shard's weights in place; the gradient of the shard is overwritten."""
        assert len(gradient) == len(self.shard_range)
        if context.loss_scale != 1:
            gradient.div_(context.loss_scale)
        norms = self._param_norms(gradient) if self._normed_params else {}
        for block, param_range in self._block_slices:
            self._step_block(
                gradient[block], block, param_range, norms.get(param_range.name), context
            )
        self.storage.evict()

    def _split_into_blocks(self, ranges: Sequence[FlatRange]) -> Iterator[tuple[slice, FlatRange]]:
        """Yield blocks of the shard, each within one range."""
        for param_range in ranges:
            start = max(0, param_range.elements.start - self.shard_range.start)
            stop = min(param_range.elements.stop - self.shard_range.start, len(self.shard_range))
            for first in range(start, stop, BLOCK_SIZE):
                yield slice(first, min(first + BLOCK_SIZE, stop)), param_range

    def _param_norms(self, gradient: Tensor) -> dict[str | None, ParamNorms]:
        """Norms of full weights and of their gradients, after weight decay is added to those.

        Gathers over the shards, so all ranks must call it together.
        """
        rows = gradient.new_zeros(len(self.shard_range) // ALIGNMENT, 2, dtype=torch.float64)
        for block, param_range in self._block_slices:
            weight = self.master_weights[block].to(self._compute_weights.device)
            if self.rule.weight_decay and param_range.decays:
                gradient[block].add_(weight, alpha=self.rule.weight_decay)
            sums = rows[block.start // ALIGNMENT : block.stop // ALIGNMENT]
            sums[:, 0] = row_sums_of_squares(weight)
            sums[:, 1] = row_sums_of_squares(gradient[block])
        gathered = self._gather_rows(rows)
        return {
            name: euclidean_norms(gathered[extent.start // ALIGNMENT : extent.stop // ALIGNMENT])
            for name, extent in self._normed_params.items()
        }

    def _step_block(
        self,
        gradient: Tensor,
        block: slice,
        param_range: FlatRange,
        norms: ParamNorms | None,
        context: StepContext,
    ) -> None:
        compute, master = self._compute_weights[block], self.master_weights[block]
        # In fp32 on the device of the network; no copy if it is there already.
        weight = master.to(compute.device)
        state = {slot: vector[block].to(compute) for slot, vector in self.slots.items()}
        if self.rule.weight_decay and param_range.decays and not self._normed_params:
            gradient.add_(weight, alpha=self.rule.weight_decay)
        self.rule.apply(ParameterBlock(weight, gradient, state, param_range.decays, norms), context)
        start = self.shard_range.start
        updated = ElementRange(range(start + block.start, start + block.stop), context.update)
        for slot, vector in self.slots.items():
            # a no-op if both are the same tensor
            vector[block].copy_(self.rounder.round(state[slot], self.policy.state, slot, updated))
        master.copy_(self.rounder.round(weight, self.policy.param, "weight", updated))
        if self.master_weights is not self._compute_weights:
            compute.copy_(self.policy.compute.round_nearest(weight))

    def named_state(self) -> dict[str, Tensor]:
        """Full optimizer state by checkpoint name; all ranks must call this.

        Frozen weights have the initial state, so that a later phase can train them.
        """
        state: dict[str, Tensor] = {}
        for slot, vector in self.slots.items():
            named = self.flat_params.named_views(self.gather_vector(vector))
            for name, frozen in self.flat_params.frozen.items():
                initial, dtype = self.rule.slots[slot], self.policy.state.dtype
                named[name] = torch.full_like(frozen, initial, dtype=dtype)
            state |= {f"{name}/{slot}": tensor for name, tensor in named.items()}
        return state

    def named_master_weights(self) -> dict[str, Tensor]:
        """Full master weights by name; empty if there is no copy. All ranks must call this."""
        if self.master_weights is self._compute_weights:
            return {}
        vector = self.gather_vector(self.master_weights)
        return self.flat_params.named_views(vector) | self.frozen_masters

    def state_template(self) -> dict[str, Tensor]:
        """Shapes and dtypes of `named_state` as meta tensors."""
        weights, dtype = self.flat_params.weights | self.flat_params.frozen, self.policy.state.dtype
        return {
            f"{name}/{slot}": torch.empty_like(weight, dtype=dtype, device="meta")
            for slot in self.slots
            for name, weight in weights.items()
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load this rank's shard of a checkpoint's optimizer state."""
        for slot, vector in self.slots.items():
            full = self.flat_params.flatten(
                {name: state[f"{name}/{slot}"] for name in self.flat_params.weights}
            )
            vector.copy_(self._shard_of(full))
        self.storage.evict()

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights in the dtype in which checkpoints store them."""
        full = self.flat_params.flatten(weights)
        self.master_weights.copy_(self._shard_of(full))
        self.flat_params.values.copy_(full)
        for frozen in (self.flat_params.frozen, self.frozen_masters):
            for name, tensor in frozen.items():
                tensor.copy_(weights[name])
        self.round_weights()
        self.storage.evict()
