"""Build the training objects of one process: network, pipeline, replicas, optimizers, feeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir

from convoy.data.feeds import loader_options, make_ledger, make_training_feed, make_validation_feed
from convoy.data.records.ledger import Ledger
from convoy.data.source import Source
from convoy.engine.metrics import ValidationShare
from convoy.engine.step_guard import NonFinitePolicy, StepGuard
from convoy.engine.trainer import Trainer
from convoy.engine.update import (
    CrossEntropy,
    ParameterGroup,
    Update,
    UpdateBatches,
    collect_gradients,
)
from convoy.layers.norms import PendingStatistics
from convoy.models.network import NetworkPlan
from convoy.numerics.loss_scale import GradientRangeCounter, LossScale
from convoy.numerics.precision import FLOAT32
from convoy.numerics.traps import Traps, WatchedLayer
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer
from convoy.parallel.channels import StageChannels, connect
from convoy.parallel.collectives import PeerGroup
from convoy.parallel.executor import Loss, TrainingPipeline, TrainingStage, classification_pipeline
from convoy.parallel.inference import InferencePipeline
from convoy.parallel.replicas import ExactReplicas, FastReplicas, ReduceOptions, Replicas
from convoy.planning.stages import stage_boundary
from convoy.run.compile import CompiledSlice
from convoy.run.network import Network, freeze, train_only, with_recomputation
from convoy.run.parameter_groups import build_network_for_precision, parameter_groups
from convoy.run.process import ProcessContext
from convoy.run.validation import Validator


@dataclass(frozen=True)
class TrainingParts:
    """The training objects of one process. None of them depends on the run folder."""

    context: ProcessContext
    network: Network
    replicas: Replicas
    groups: Sequence[ParameterGroup]
    pipeline: TrainingPipeline
    trainer: Trainer
    ema: ExponentialMovingAverage
    validate: Validator | None
    ledger: Ledger | None

    @property
    def optimizers(self) -> list[Optimizer]:
        return [group.optimizer for group in self.groups]


def build(
    context: ProcessContext, train: Source, validation: Source | None, scratch: Path
) -> TrainingParts:
    """Build the training objects; offloaded optimizer state is stored in `scratch`."""
    plan, config = context.plan, context.plan.config
    network, replicas = build_training_network(context), make_replicas(context)
    stages = [parameter_groups(context, replicas, scratch, layers) for layers in network.slices]
    groups = [group for stage in stages for group in stage]
    optimizers = [group.optimizer for group in groups]
    ema = ExponentialMovingAverage(config.average.ema_decay, optimizers, network.tensors())
    collect = [partial(collect_gradients, stage) for stage in stages]
    pipeline = make_pipeline(context, network, CrossEntropy(config.loss), collect)
    update = Update(
        pipeline,
        groups,
        replicas,
        PendingStatistics(network.norms),
        make_guard(context, network, groups),
        ema,
    )
    is_remote = scratch == Path(gettempdir())  # the run folder is not on this host
    ledger = make_ledger(config.data, None if is_remote else scratch)
    feed = make_training_feed(plan, train, context.device, context.needed_inputs, ledger)
    micro_batches = UpdateBatches(feed, loader_options(config), context.update_share)
    trainer = Trainer(plan.loop, micro_batches, update)
    validate = None
    if validation is not None:
        validate = make_validator(context, network, validation, ledger)
    return TrainingParts(
        context, network, replicas, groups, pipeline, trainer, ema, validate, ledger
    )


def make_validator(
    context: ProcessContext, network: Network, source: Source, ledger: Ledger | None
) -> Validator:
    """Create the validator of the network in training; all processes take part."""
    config, size = context.plan.config, context.plan.validation_network.image_size
    feed = make_validation_feed(config, source, size, context.device, context.needed_inputs, ledger)
    channels = _make_channels(context, context.plan.validation_network, feed.size)
    predictions = InferencePipeline(network.stage_modules, channels)
    replicas = context.plan.topology.replicas
    share = ValidationShare(context.coordinates.replica, replicas, context.control)
    return Validator(predictions, feed, loader_options(config), share)


def build_training_network(context: ProcessContext) -> Network:
    plan, config = context.plan, context.plan.config
    micros = plan.batch.micro_batches_of(context.coordinates.replica)
    network = build_network_for_precision(
        config, plan.network, context.device, context.stages, micros
    )
    freeze(network, [layer.name for layer in plan.frozen_layers])
    train_only(network, config.optimizer.variable_filter)
    if context.groups.norm_sync.process_group is not None:  # norms span neighboring replicas
        peers = PeerGroup(context.groups.norm_sync.process_group)
        for norm in network.norms:
            norm.sync_with(peers)
    if config.compiler.compile:
        network = replace(network, stage_modules=tuple(map(CompiledSlice, network.slices)))
    return with_recomputation(network, plan.recompute)


def make_pipeline(
    context: ProcessContext, network: Network, loss: Loss, collect: Sequence[Callable[[], None]]
) -> TrainingPipeline:
    """Create the pipeline of this process's stages.

    `collect` has one function per stage, which collects the gradients of a micro-batch.
    """
    plan = context.plan
    channels = _make_channels(context, plan.network, plan.batch.micro_batch_size)
    stages = [
        TrainingStage(*parts, plan.schedule, plan.batch.gradient_accumulation)
        for parts in zip(network.stage_modules, channels, collect, strict=True)
    ]
    return classification_pipeline(stages, loss)


def make_replicas(context: ProcessContext) -> Replicas:
    group, config = context.groups.data_parallel.process_group, context.plan.config
    if group is None:
        return Replicas()
    options = ReduceOptions(
        config.memory.enable_optimizer_rts,
        config.replica.max_cross_replica_buffer_size,
        config.replica.overlap_reduction,
    )
    replicas_class = ExactReplicas if config.replica.reduction == "exact" else FastReplicas
    return replicas_class(PeerGroup(group), options)


def _make_channels(
    context: ProcessContext, network: NetworkPlan, samples: int
) -> list[StageChannels]:
    frozen = context.plan.first_trained_layer
    boundaries = [stage_boundary(network, stage, samples, frozen) for stage in context.stages]
    return connect(boundaries, context.groups.pipeline.process_group, context.device)


def make_guard(
    context: ProcessContext, network: Network, groups: Sequence[ParameterGroup]
) -> StepGuard:
    """Create the step guard, equal on all processes; each watches its own gradients."""
    config, scale = context.plan.config, LossScale(context.plan.loop.loss_scale)
    traps_enabled = config.precision.enable_fp_exceptions
    policy = NonFinitePolicy(
        config.loss.on_nonfinite == "skip", config.loss.max_skipped, traps_enabled
    )
    counters = _range_counters(context, groups)
    # torch.compile ignores forward hooks.
    traps = None if config.compiler.compile else _make_traps(context, network, groups)
    return StepGuard(context.control, scale, policy, counters, traps)


def _range_counters(
    context: ProcessContext, groups: Sequence[ParameterGroup]
) -> list[GradientRangeCounter]:
    """One for each group with 16-bit gradients, for automatic loss scaling or saturation."""
    counts = context.plan.loop.loss_scale.automatic
    saturates = context.plan.config.precision.saturate_on_overflow
    counters = []
    for group in groups:
        compute = group.optimizer.policy.compute
        if compute != FLOAT32 and (counts or saturates):
            counter = GradientRangeCounter(compute, counts, saturates)
            group.gradients.gradient_hook = counter
            counters.append(counter)
    return counters


def _make_traps(
    context: ProcessContext, network: Network, groups: Sequence[ParameterGroup]
) -> Traps:
    names = [layer.name for layer in context.plan.network.layers]
    watched = [
        WatchedLayer(stage.first + index, module, layers.position, layers.arithmetic.float_format)
        for stage, layers in zip(context.stages, network.slices, strict=True)
        for index, module in enumerate(layers.layers.values())
    ]
    return Traps(names, watched, [group.gradients for group in groups])
