"""Parameter groups: the dtype policy, decay and gradient accumulation of every weight, and its
optimizer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from convoy.config.resolve import divided_rule
from convoy.config.schema import RunConfig
from convoy.engine.update import ParameterGroup
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import ACCUMULATOR_TYPES, DIVIDED_FIRST, GradientTree, reduction_of
from convoy.numerics.precision import (
    FLOAT32,
    TYPES,
    Arithmetic,
    DtypePolicy,
    Rounder,
    StochasticRounder,
)
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer, Shard, storage_for
from convoy.optim.update_rules import make_update_rule
from convoy.parallel.collectives import Shards
from convoy.parallel.replicas import Replicas, gatherer, row_gatherer
from convoy.parallel.slice import Slice
from convoy.plan.parameters import computes_natively
from convoy.plan.stages import StagePlan
from convoy.run.network import Network, full_names, named_by, without_decay
from convoy.run.process import ProcessContext

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
        for policy, weights in by_policy(config, layers).items():
            for weight in weights.values():
                weight.copy_(policy.compute.nearest(weight))


def by_policy(config: RunConfig, layers: Slice) -> dict[DtypePolicy, Weights]:
    """In the order in which the policies come up; a stage without weights has one of nothing."""
    weights, called = layers.named_weights(), full_names(layers)
    groups: dict[DtypePolicy, dict[str, nn.Parameter]] = {} if weights else {DtypePolicy(): {}}
    for name, weight in weights.items():
        groups.setdefault(dtype_policy(config, name, called[name]), {})[name] = weight
    return {**groups}


def dtype_policy(config: RunConfig, name: str, called: str) -> DtypePolicy:
    """The types around a weight: by its name, and by all that it may be called."""
    policy, state = _param_and_compute(config, name, called), config.optimizer.optimizer_state_dtype
    rules = map(divided_rule, config.memory.accumulator_dtype_rules)
    words = (word for pattern, word in rules if fnmatchcase(name, pattern))
    divided = any(re.fullmatch(one, name) for one in config.optimizer.gradient_mean_reduce_re)
    return replace(
        policy,
        accumulator=ACCUMULATOR_TYPES[next(words, config.memory.accumulator_dtype)],
        state=policy.param if state == "weights" else TYPES[state],
        reduction=DIVIDED_FIRST if divided else config.memory.gradient_reduction,
    )


def _param_and_compute(config: RunConfig, name: str, called: str) -> DtypePolicy:
    wish, half = config.precision, TYPES[config.precision.half_type]
    policy = DtypePolicy()
    is_whole_norm = config.network.full_precision_norm and called != name
    if wish.precision != "32.32" and not is_whole_norm:
        keeps_whole = wish.precision == "16.32" or wish.offload_fp32_weight_copy
        policy = DtypePolicy(param=FLOAT32 if keeps_whole else half, compute=half)
    if any(part in called for part in wish.force_weight_to_fp32):
        return replace(policy, param=FLOAT32)
    if any(part in called for part in wish.force_weight_to_fp16):
        return replace(policy, param=half, compute=half)
    return policy


def parameter_groups(
    context: ProcessContext, replicas: Replicas, scratch: Path, layers: Slice
) -> list[ParameterGroup]:
    """One for each dtype policy. `scratch` is where state may lie that is kept off the device."""
    batch, config = context.plan.batch, context.plan.config
    wish = config.optimizer
    spared = without_decay(layers, wish.weight_decay_spares)
    adapted = layers.named_weights().keys() - named_by(layers, wish.lars_skip_list)
    groups = []
    for policy, weights in by_policy(config, layers).items():
        flat = FlatWeights(weights, spared)
        shards = Shards(flat.elements, batch.replicas)
        optimizer = Optimizer(
            flat,
            make_update_rule(wish, batch.samples_per_update, adapted),
            Shard(replicas.owned(flat.elements), row_gatherer(replicas, shards)),
            storage_for(context.device, config.memory.offload_optimizer, scratch),
            policy,
            rounder_of(config, flat),
        )
        tree = GradientTree(
            flat,
            context.coordinates.replica * batch.gradient_accumulation,
            policy.accumulator_dtype,
            batch.gradient_accumulation,
            reduction_of(policy, batch.micro_batches),
            policy.compute,
        )
        groups.append(ParameterGroup(tree, optimizer))
    return groups


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
