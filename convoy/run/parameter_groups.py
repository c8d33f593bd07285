"""Parameter groups: the dtype policy, decay and gradient accumulation of every weight, and its
optimizer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn

from convoy.config.resolve import split_dtype_rule
from convoy.config.schema import RunConfig
from convoy.engine.update import ParameterGroup
from convoy.models.network import NetworkPlan
from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import (
    ACCUMULATOR_DTYPES,
    DIVIDED_FIRST,
    GradientTree,
    make_reduction,
)
from convoy.numerics.precision import (
    FLOAT32,
    FLOAT_FORMATS,
    Arithmetic,
    DtypePolicy,
    Rounder,
    StochasticRounder,
)
from convoy.optim.optimizer import Optimizer, OptimizerShard, make_state_storage
from convoy.optim.update_rules import make_update_rule
from convoy.parallel.collectives import Shards
from convoy.parallel.replicas import Replicas, row_gatherer, shard_gatherer
from convoy.parallel.slice import Slice
from convoy.planning.parameters import uses_native_half
from convoy.planning.stages import StagePlan
from convoy.run.network import (
    Network,
    build_network,
    names_matching,
    no_decay_names,
    norm_roles,
)
from convoy.run.process import ProcessContext

Weights = Mapping[str, nn.Parameter]


def build_network_for_precision(
    config: RunConfig,
    plan: NetworkPlan,
    device: torch.device,
    stages: Sequence[StagePlan] = (),
    micros: range = range(1),
) -> Network:
    """Build layers with the configured precision; all layers if no stage is given."""
    network = build_network(plan, config.data.seed, device, stages, micros)
    precision = config.precision
    compute = FLOAT32 if precision.precision == "32.32" else FLOAT_FORMATS[precision.half_type]
    native = uses_native_half(precision, device.type)
    partials = precision.half_partial and precision.half_arithmetic == "emulated"
    arithmetic = Arithmetic(compute, native, precision.saturate_on_overflow, partials)
    for index, layers in enumerate(network.slices):
        is_first = not stages or stages[index].first == 0
        layers.set_arithmetic(arithmetic, rounds_input=is_first)
    return network


@torch.no_grad()
def round_weights(config: RunConfig, network: Network) -> None:
    """Round the weights of an inference network to their compute dtype."""
    for layers in network.slices:
        for policy, weights in weights_by_policy(config, layers).items():
            for weight in weights.values():
                weight.copy_(policy.compute.round_nearest(weight))


def weights_by_policy(config: RunConfig, layers: Slice) -> dict[DtypePolicy, Weights]:
    """Group weights by dtype policy, in order; a stage without weights has one empty group."""
    weights, roles = layers.named_weights(), norm_roles(layers)
    groups: dict[DtypePolicy, dict[str, nn.Parameter]] = {} if weights else {DtypePolicy(): {}}
    for name, weight in weights.items():
        groups.setdefault(dtype_policy(config, name, roles.get(name)), {})[name] = weight
    return {**groups}


def dtype_policy(config: RunConfig, name: str, norm_role: str | None) -> DtypePolicy:
    """The dtype policy of a weight, by its name and its role if it belongs to a norm."""
    policy = _param_and_compute_dtypes(config, name, norm_role)
    state = config.optimizer.optimizer_state_dtype
    rules = map(split_dtype_rule, config.memory.accumulator_dtype_rules)
    dtypes = (dtype for pattern, dtype in rules if fnmatchcase(name, pattern))
    mean_patterns = config.optimizer.gradient_mean_reduce_re
    divided = any(re.fullmatch(pattern, name) for pattern in mean_patterns)
    return replace(
        policy,
        accumulator=ACCUMULATOR_DTYPES[next(dtypes, config.memory.accumulator_dtype)],
        state=policy.param if state == "weights" else FLOAT_FORMATS[state],
        reduction=DIVIDED_FIRST if divided else config.memory.gradient_reduction,
    )


def _param_and_compute_dtypes(config: RunConfig, name: str, norm_role: str | None) -> DtypePolicy:
    precision, half = config.precision, FLOAT_FORMATS[config.precision.half_type]
    policy = DtypePolicy()
    is_fp32_norm = config.network.full_precision_norm and norm_role is not None
    if precision.precision != "32.32" and not is_fp32_norm:
        has_fp32_param = precision.precision == "16.32" or precision.offload_fp32_weight_copy
        policy = DtypePolicy(param=FLOAT32 if has_fp32_param else half, compute=half)
    searched = f"{name} {norm_role}" if norm_role else name
    if any(substring in searched for substring in precision.force_weight_to_fp32):
        return replace(policy, param=FLOAT32)
    if any(substring in searched for substring in precision.force_weight_to_fp16):
        return replace(policy, param=half, compute=half)
    return policy


def parameter_groups(
    context: ProcessContext, replicas: Replicas, scratch: Path, layers: Slice
) -> list[ParameterGroup]:
    """Create one group per dtype policy; offloaded optimizer state is stored in `scratch`."""
    batch, config = context.plan.batch, context.plan.config
    options, rounder = config.optimizer, Rounder()
    exempt = no_decay_names(layers, options.weight_decay_spares)
    adapted = layers.named_weights().keys() - names_matching(layers, options.lars_skip_list)
    groups = []
    for policy, weights in weights_by_policy(config, layers).items():
        flat = FlatParameters(weights, exempt)
        shard = OptimizerShard(
            replicas.shard_range(flat.numel),
            row_gatherer(replicas, Shards(flat.numel, batch.replicas)),
            shard_gatherer(replicas, flat.numel),
        )
        if config.precision.enable_stochastic_rounding:
            rounder = StochasticRounder(config.data.seed, flat.parameter_extents())
        optimizer = Optimizer(
            flat,
            make_update_rule(options, batch.samples_per_update, adapted),
            shard,
            make_state_storage(context.device, config.memory.offload_optimizer, scratch),
            policy,
            rounder,
        )
        tree = GradientTree(
            flat,
            context.coordinates.replica * batch.gradient_accumulation,
            policy.accumulator_dtype,
            batch.gradient_accumulation,
            make_reduction(policy, batch.micro_batches),
            policy.compute,
        )
        groups.append(ParameterGroup(tree, optimizer))
    return groups
