"""Gradient accumulation, reduction over replicas and the step of any torch optimizer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from convoy.engine.node_channels import ProcessLayout
from convoy.engine.offload import OffloadedState, accumulator_storage
from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import REDUCTIONS, GradientTree, Reduction
from convoy.parallel.collectives import wait_all
from convoy.parallel.replicas import ReplicaGroup

DtypeChoice = torch.dtype | Callable[[Tensor], torch.dtype | None] | None
GradientMap = Callable[[Tensor, nn.Parameter], Tensor]


@dataclass(frozen=True)
class StepOptions:
    """How gradients are accumulated, and where the state of the optimizer is."""

    gradient_accumulation: int = 1
    accumulator_dtype: DtypeChoice = None  # None: that of each parameter
    reduction: str = "mean"
    map_gradient: GradientMap | None = None
    offload_optimizer: bool = False
    offload_accumulators: bool = False
    shard_optimizer: bool = False

    def __post_init__(self) -> None:
        count = self.gradient_accumulation
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"gradient_accumulation must be an integer, got {count!r}")
        if not 1 <= count < 2**31:
            raise ValueError(f"gradient_accumulation must be between 1 and 2**31 - 1, got {count}")
        if self.reduction not in REDUCTIONS:
            names = ", ".join(map(repr, REDUCTIONS))
            raise ValueError(f"reduction must be one of {names}, got {self.reduction!r}")
        check_dtype_choice("accumulator_dtype", self.accumulator_dtype)
        mapping: Any = self.map_gradient
        if mapping is not None and not callable(mapping):
            raise TypeError(f"map_gradient must be a function, got {type(mapping).__name__}")

    def dtype_of(self, parameter: nn.Parameter) -> torch.dtype:
        """The dtype in which the gradient of a parameter is accumulated."""
        dtype = choose_dtype("accumulator_dtype", self.accumulator_dtype, parameter)
        if not dtype.is_floating_point:
            raise ValueError(f"accumulator_dtype must be a floating-point dtype, got {dtype}")
        return dtype


def check_dtype_choice(name: str, choice: Any) -> None:
    if not (choice is None or isinstance(choice, torch.dtype) or callable(choice)):
        raise TypeError(f"{name} must be a torch.dtype or a function that returns one: {choice!r}")


def choose_dtype(name: str, choice: DtypeChoice, tensor: Tensor) -> torch.dtype:
    """The dtype of the sum of tensors like this one; by default its own."""
    dtype = choice if choice is None or isinstance(choice, torch.dtype) else choice(tensor)
    if not isinstance(dtype, torch.dtype | None):
        raise TypeError(f"{name} must return a torch.dtype, got {dtype!r}")
    return dtype or tensor.dtype


@dataclass(frozen=True)
class _SumOfReplicaMeans(Reduction):
    """The sum over the micro-batches of a replica, averaged over the replicas."""

    replicas: int

    def finalize(self, total: Tensor, micro_batches: int, out: Tensor) -> Tensor:
        del micro_batches
        return torch.div(total, self.replicas, out=out)


def _make_reduction(name: str, replicas: int) -> Reduction:
    if name == "sum" and replicas > 1:
        return _SumOfReplicaMeans(replicas)
    return REDUCTIONS[name]


class GradientStep:
    """Accumulates the gradients of parameters and applies them with a torch optimizer.

    Gradients are summed along a fixed tree over the micro-batches of all replicas. If each replica
    has a block of consecutive micro-batches, the result does not depend on the number of replicas.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[Sequence[nn.Parameter]],
        layout: ProcessLayout,
        options: StepOptions,
    ) -> None:
        """`groups` are the parameters whose gradients are collected together; see `collect`."""
        self.optimizer = optimizer
        self.replicas = layout.data_parallel
        self.options = options
        self._trees = [self._make_trees(parameters, layout) for parameters in groups]
        self._owners = _assign_owners([tree.flat for tree in self.trees], layout)
        self._state = OffloadedState(optimizer) if options.offload_optimizer else None

    @property
    def trees(self) -> list[GradientTree]:
        return [tree for trees in self._trees for tree in trees]

    @property
    def micro_batches(self) -> int:
        """Micro-batches of this replica that are accumulated and not applied."""
        return max((tree.leaves for tree in self.trees), default=0)

    def _make_trees(
        self, parameters: Iterable[nn.Parameter], layout: ProcessLayout
    ) -> list[GradientTree]:
        """One tree per dtype and device of parameters, and dtype of the accumulator."""
        reduction = _make_reduction(self.options.reduction, layout.replicas)
        storage = accumulator_storage(self.options.offload_accumulators)

        def group_key(parameter: nn.Parameter) -> tuple[str, str, torch.dtype]:
            dtype = self.options.dtype_of(parameter)
            return str(parameter.dtype), str(parameter.device), dtype

        trees = []
        ordered = sorted(parameters, key=lambda parameter: str(group_key(parameter)))
        for (_, _, dtype), members in groupby(ordered, group_key):
            weights = {str(index): weight for index, weight in enumerate(members)}
            first_leaf = layout.replica * self.options.gradient_accumulation
            tree = GradientTree(
                FlatParameters(weights, no_decay=()), first_leaf, dtype, reduction=reduction
            )
            tree.result_dtype = dtype
            tree.storage = storage
            trees.append(tree)
        return trees

    def collect(self, group: int = 0) -> None:
        """Accumulate and clear the gradients of one micro-batch, for one group of parameters."""
        weights = [weight for tree in self._trees[group] for weight in tree.flat.weights.values()]
        missing = [weight for weight in weights if weight.grad is None]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(weights)} parameters have no gradient, the first one of "
                f"shape {tuple(missing[0].shape)}: the loss must depend on all parameters of the "
                "optimizer; call backward first, or remove them from it"
            )
        for tree in self._trees[group]:
            tree.collect()

    @torch.no_grad()
    def apply(self) -> None:
        """Reduce the gradients over micro-batches and replicas, and update the parameters."""
        for tree, owners in zip(self.trees, self._owners, strict=True):
            total = self.replicas.reduce(tree).to(tree.flat.values.device)
            self._set_gradients(tree.flat, tree.flat.views(total), owners)
        if self._state is not None:
            self._state.fetch()
        self.optimizer.step()
        if self._state is not None:
            self._state.evict()
        for tree, owners in zip(self.trees, self._owners, strict=True):
            for weight in tree.flat.weights.values():
                weight.grad = None
            if self.options.shard_optimizer and isinstance(self.replicas, ReplicaGroup):
                _check_memory(tree.flat)
                parts = owners.parts(tree.flat)
                wait_all(self.replicas.peers.all_gather_in_place(parts))
            tree.clear()

    def _set_gradients(
        self, flat: FlatParameters, gradients: Sequence[Tensor], owners: "ParameterOwners"
    ) -> None:
        """Set `grad` of the parameters that this replica updates."""
        for (name, weight), gradient in zip(flat.weights.items(), gradients, strict=True):
            if self.options.shard_optimizer and name not in owners.local:
                continue  # torch optimizers skip parameters without a gradient
            mapped: Any = gradient
            if self.options.map_gradient is not None:
                mapped = self.options.map_gradient(gradient, weight)
                if not isinstance(mapped, Tensor):
                    name = type(mapped).__name__
                    raise TypeError(f"map_gradient must return a tensor, got {name}")
                if mapped.shape != weight.shape:
                    raise ValueError(
                        f"map_gradient returned the shape {tuple(mapped.shape)} for a parameter of "
                        f"shape {tuple(weight.shape)}"
                    )
            weight.grad_dtype = None  # any dtype is allowed
            weight.grad = mapped


def _check_memory(flat: FlatParameters) -> None:
    """The parameters must still be views of the vector that the replicas exchange."""
    views = flat.views(flat.values)
    for weight, view in zip(flat.weights.values(), views, strict=True):
        if weight.data_ptr() != view.data_ptr():
            raise ValueError(
                f"the memory of a parameter of shape {tuple(weight.shape)} was replaced; with "
                "shard_optimizer, a parameter belongs to one pipeline or DistributedOptimizer"
            )


@dataclass(frozen=True)
class ParameterOwners:
    """Which replica updates each parameter of a flat vector, if the optimizer state is sharded.

    Whole parameters, so that any optimizer works; each replica has a contiguous part.
    """

    ranges: Sequence[range]  # elements by replica
    local: frozenset[str]  # parameters of this replica

    def parts(self, flat: FlatParameters) -> list[Tensor]:
        return [flat.values[part.start : part.stop] for part in self.ranges]


def _assign_owners(flats: Sequence[FlatParameters], layout: ProcessLayout) -> list[ParameterOwners]:
    count, here = layout.replicas, layout.replica
    result = []
    for flat in flats:
        ranges = flat.padded_ranges()
        stops = [0] * count
        names: set[str] = set()
        for name, elements in ranges.items():
            # The replica in whose equal share the middle of the parameter is.
            middle = (elements.start + elements.stop) // 2
            owner = min(count - 1, middle * count // max(1, flat.numel))
            stops[owner] = elements.stop
            if owner == here:
                names.add(name)
        for index in range(1, count):
            stops[index] = max(stops[index], stops[index - 1])
        starts = [0, *stops[:-1]]
        parts = [range(start, stop) for start, stop in zip(starts, stops, strict=True)]
        result.append(ParameterOwners(parts, frozenset(names)))
    return result


class AccumulatingOptimizer:
    """A torch optimizer whose `step` accumulates gradients, and updates at every n-th call."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, layout: ProcessLayout, options: StepOptions
    ) -> None:
        checked: Any = optimizer
        if not isinstance(checked, torch.optim.Optimizer):
            name = type(checked).__name__
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {name}")
        groups = optimizer.param_groups
        parameters = [item for group in groups for item in group["params"] if item.requires_grad]
        for parameter in parameters if layout.peers is not None else ():
            dist.broadcast(parameter.data, group=layout.peers, group_src=0)
        self.optimizer = optimizer
        self.updates = 0  # so far
        self._parameters = parameters
        self._count = options.gradient_accumulation
        self._step = GradientStep(optimizer, [parameters], layout, options)

    def step(self) -> None:
        """Accumulate and clear the gradients; update if enough are accumulated."""
        self._step.collect()
        if self._step.micro_batches == self._count:
            self._step.apply()
            self.updates += 1

    def zero_grad(self) -> None:
        """Clear gradients that were not accumulated by `step`."""
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The state of the torch optimizer; with `shard_optimizer`, that of this replica."""
        if self._step.micro_batches:
            raise ValueError(
                f"{self._step.micro_batches} of {self._count} micro-batches are accumulated; save "
                "after an update"
            )
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
