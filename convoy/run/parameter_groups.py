"""Parameter groups: the dtype policy, decay and gradient accumulation of every weight, and its
optimizer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from convoy.config.rules import divided_rule
from convoy.config.schema import RunConfig
from convoy.engine.update import ParameterGroup
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import ACCUMULATOR_TYPES, DIVIDED_FIRST, GradientTree, reduction_of
from convoy.numerics.precision import (
    FLOAT32,
    TYPES,
    Arithmetic,
    DtypePolicy,
    NumberType,
    Rounder,
    StochasticRounder,
)
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer, Shard, storage_for
from convoy.optim.update_rules import UpdateRule, make_update_rule
from convoy.parallel.reducer import Shards
from convoy.parallel.replicas import Replicas, gatherer, row_gatherer
from convoy.parallel.slice import Slice
from convoy.plan.parameters import computes_natively
from convoy.plan.stages import StagePlan
from convoy.run.network import Network, full_names, named_by, without_decay
from convoy.run.process import ProcessContext


@dataclass(frozen=True)
class Sums:
    """What a weight asks of its gradient tree."""

    dtype: torch.dtype | None  # None is the type in which the weight is kept
    reduction: str  # by name, as the dtype policy says it


def sums_of(config: RunConfig) -> Callable[[str], Sums]:
    """The sums of each weight, by its name."""
    rules = [divided_rule(one) for one in config.memory.accumulator_dtype_rules]
    divided = [re.compile(one) for one in config.optimizer.gradient_mean_reduce_re]

    def sums_for(name: str) -> Sums:
        words = (word for pattern, word in rules if fnmatchcase(name, pattern))
        dtype = ACCUMULATOR_TYPES[next(words, config.memory.accumulator_dtype)]
        is_divided = any(one.fullmatch(name) for one in divided)
        return Sums(dtype, DIVIDED_FIRST if is_divided else config.memory.gradient_reduction)

    return sums_for


Weights = Mapping[str, nn.Parameter]


def arithmetic_of(config: RunConfig, device: torch.device) -> Arithmetic:
    """How layers compute there."""
    wish = config.precision
    number = FLOAT32 if wish.precision == "32.32" else TYPES[wish.half_type]
    native = computes_natively(wish, device.type)
    partials = wish.half_partial and wish.half_arithmetic == "emulated"
    return Arithmetic(number, native, wish.saturate_on_overflow, partials)


def compute_in(
    config: RunConfig, network: Network, device: torch.device, stages: Sequence[StagePlan]
) -> Network:
    """The same network, which computes as the configuration wants it."""
    arithmetic = arithmetic_of(config, device)
    for layers, stage in zip(network.slices, stages, strict=True):
        layers.compute_in(arithmetic, takes_images=stage.first == 0)
    return network


@torch.no_grad()
def round_weights(config: RunConfig, network: Network) -> None:
    """Weights of a network that only answers: as they are used."""
    for layers in network.slices:
        types = WeightTypes.of(config, layers)
        for name, weight in layers.named_weights().items():
            weight.copy_(types.policy(name).compute.nearest(weight))


def by_policy(config: RunConfig, layers: Slice) -> dict[DtypePolicy, Weights]:
    """In the order in which the policies come up; a stage without weights has one of nothing."""
    weights, types = layers.named_weights(), WeightTypes.of(config, layers)
    groups: dict[DtypePolicy, dict[str, nn.Parameter]] = {} if weights else {DtypePolicy(): {}}
    for name, weight in weights.items():
        groups.setdefault(types.policy(name), {})[name] = weight
    return {**groups}


@dataclass(frozen=True)
class WeightTypes:
    """The types around each weight, by its name."""

    config: RunConfig
    called: Mapping[str, str]  # each name with all else that the weight may be called
    sums_for: Callable[[str], Sums]

    @classmethod
    def of(cls, config: RunConfig, layers: Slice) -> "WeightTypes":
        return cls(config, full_names(layers), sums_of(config))

    def policy(self, name: str) -> DtypePolicy:
        sums, policy = self.sums_for(name), self._forced(name)
        state = state_type(self.config.optimizer.optimizer_state_dtype, policy.param)
        return replace(policy, accumulator=sums.dtype, state=state, reduction=sums.reduction)

    def _forced(self, name: str) -> DtypePolicy:
        wish, policy = self.config.precision, self._usual(name)
        if any(part in self.called[name] for part in wish.force_weight_to_fp32):
            return replace(policy, param=FLOAT32)
        if any(part in self.called[name] for part in wish.force_weight_to_fp16):
            return replace(policy, param=self._half, compute=self._half)
        return policy

    def _usual(self, name: str) -> DtypePolicy:
        wish = self.config.precision
        is_of_a_norm = self.called[name] != name
        whole = self.config.network.full_precision_norm and is_of_a_norm
        if wish.precision == "32.32" or whole:
            return DtypePolicy()
        keeps_whole = wish.precision == "16.32" or wish.offload_fp32_weight_copy
        return DtypePolicy(param=FLOAT32 if keeps_whole else self._half, compute=self._half)

    @property
    def _half(self) -> NumberType:
        return TYPES[self.config.precision.half_type]


def state_type(wish: str, kept: NumberType) -> NumberType:
    """The numbers of the optimizer's state, for a weight that is kept in those."""
    return kept if wish == "weights" else TYPES[wish]


class ParameterGroupBuilder:
    """Makes the parameter groups of the stages of one process."""

    def __init__(self, context: ProcessContext, replicas: Replicas, scratch: Path) -> None:
        """`scratch` is where state may lie that is kept off the device."""
        self.context = context
        self.replicas = replicas
        self.scratch = scratch

    def of(self, layers: Slice) -> list[ParameterGroup]:
        """One for each dtype policy."""
        groups = by_policy(self.context.plan.config, layers)
        return [self._group(policy, weights, layers) for policy, weights in groups.items()]

    def _group(self, policy: DtypePolicy, weights: Weights, layers: Slice) -> ParameterGroup:
        plan, context = self.context.plan, self.context
        accumulation = plan.batch.gradient_accumulation
        spared = without_decay(layers, plan.config.optimizer.weight_decay_spares)
        flat = FlatWeights(weights, spared)
        storage = storage_for(context.device, plan.config.memory.offload_optimizer, self.scratch)
        rule, rounder = self._rule(layers), rounder_of(plan.config, flat)
        optimizer = Optimizer(flat, rule, self._shard(flat.elements), storage, policy, rounder)
        first = context.coordinates.replica * accumulation
        reduction = reduction_of(policy, plan.batch.micro_batches)
        tree = GradientTree(
            flat, first, policy.accumulator_dtype, accumulation, reduction, policy.compute
        )
        return ParameterGroup(tree, optimizer)

    def _rule(self, layers: Slice) -> UpdateRule:
        wish, samples = (
            self.context.plan.config.optimizer,
            self.context.plan.batch.samples_per_update,
        )
        skipped = named_by(layers, wish.lars_skip_list)
        return make_update_rule(wish, samples, layers.named_weights().keys() - skipped)

    def _shard(self, elements: int) -> Shard:
        shards = Shards(elements, self.context.plan.batch.replicas)
        return Shard(self.replicas.owned(elements), row_gatherer(self.replicas, shards))


def rounder_of(config: RunConfig, flat: FlatWeights) -> Rounder:
    """How new weights and state become 16 bits."""
    if not config.precision.enable_stochastic_rounding:
        return Rounder()
    return StochasticRounder(config.data.seed, flat.extents())


def make_ema(
    config: RunConfig, network: Network, optimizers: Sequence[Optimizer], replicas: Replicas
) -> ExponentialMovingAverage:
    """The EMA of the weights; with sharded state, each replica has its shard of it."""

    def gather(optimizer: Optimizer, shard: Tensor) -> Tensor:
        return gatherer(replicas, optimizer.flat.elements)(shard)

    return ExponentialMovingAverage(config.average.ema_decay, optimizers, network.tensors(), gather)
