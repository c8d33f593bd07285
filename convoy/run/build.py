"""Builds what one process of a run trains with: network, pipeline, replicas, optimizers, feeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir

from convoy.data.feeds import ledger_of, loader_options, training_feed, validation_feed
from convoy.data.records.ledger import Ledger
from convoy.data.source import Source
from convoy.engine.step_guard import NonFinitePolicy, StepGuard
from convoy.engine.trainer import Trainer
from convoy.engine.update import (
    CrossEntropy,
    MicroBatches,
    ParameterGroup,
    Update,
    collect_gradients,
)
from convoy.layers.norms import PendingStatistics
from convoy.models.network import NetworkPlan
from convoy.numerics.loss_scale import GradientRangeCounter, LossScale
from convoy.numerics.precision import FLOAT32
from convoy.numerics.traps import Traps, Watched
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer
from convoy.parallel.channels import StageChannels, connect
from convoy.parallel.collectives import Peers
from convoy.parallel.executor import Loss, Pipeline, TrainingStage
from convoy.parallel.inference import InferencePipeline
from convoy.parallel.replicas import ExactReplicas, FastReplicas, Meeting, Replicas
from convoy.plan.stages import stage_boundary
from convoy.run.network import (
    Network,
    build_network,
    compiled,
    freeze,
    share_statistics,
    train_only,
    with_recomputation,
)
from convoy.run.parameter_groups import compute_in, make_ema, parameter_groups
from convoy.run.process import ProcessContext
from convoy.run.validation import Validator


@dataclass(frozen=True)
class TrainingParts:
    """What one process of a run trains with. None of these knows the run."""

    context: ProcessContext
    network: Network
    replicas: Replicas
    groups: Sequence[ParameterGroup]
    pipeline: Pipeline
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
    """`scratch` is where optimizer state is stored that is offloaded."""
    plan, config = context.plan, context.plan.config
    network, replicas = training_network(context), make_replicas(context)
    stages = [parameter_groups(context, replicas, scratch, layers) for layers in network.slices]
    groups = [group for stage in stages for group in stage]
    ema = make_ema(config, network, [group.optimizer for group in groups], replicas)
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
    elsewhere = scratch == Path(gettempdir())  # the folder of the run is not on this host
    ledger = ledger_of(config.data, None if elsewhere else scratch)
    feed = training_feed(plan, train, context.device, context.needs, ledger)
    micro_batches = MicroBatches(feed, loader_options(config), context.update_share)
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
    """Validation of the network in training, by all processes together."""
    config, size = context.plan.config, context.plan.validation_network.image_size
    feed = validation_feed(config, source, size, context.device, context.needs, ledger)
    channels = _channels(context, context.plan.validation_network, feed.size)
    predictions = InferencePipeline(network.runs, channels)
    return Validator(predictions, feed, loader_options(config), context.share)


def training_network(context: ProcessContext) -> Network:
    plan, config = context.plan, context.plan.config
    micros = plan.batch.micro_batches_of(context.coordinates.replica)
    built = build_network(plan.network, context.stages, config.data.seed, context.device, micros)
    compute_in(config, built, context.device, context.stages)
    fresh = freeze(built, [layer.name for layer in plan.frozen_layers])
    train_only(fresh, config.optimizer.variable_filter)
    share_statistics(fresh, context.groups.span.handle)
    ready = compiled(fresh) if config.compiler.compile else fresh
    return with_recomputation(ready, plan.recompute)


def make_pipeline(
    context: ProcessContext, network: Network, loss: Loss, collect: Sequence[Callable[[], None]]
) -> Pipeline:
    """Forward and backward through our stages.

    `collect` has a function for each stage, which takes the gradients of a micro-batch.
    """
    plan = context.plan
    channels = _channels(context, plan.network, plan.batch.micro_batch_size)
    stages = [
        TrainingStage(run, place, take, plan.schedule, plan.batch.gradient_accumulation)
        for run, place, take in zip(network.runs, channels, collect, strict=True)
    ]
    return Pipeline(stages, loss)


def make_replicas(context: ProcessContext) -> Replicas:
    group, config = context.groups.siblings.handle, context.plan.config
    if group is None:
        return Replicas()
    meeting = Meeting(
        config.memory.enable_optimizer_rts,
        config.replica.max_cross_replica_buffer_size,
        config.replica.overlap_reduction,
    )
    kind = ExactReplicas if config.replica.reduction == "exact" else FastReplicas
    return kind(Peers(group), meeting)


def _channels(context: ProcessContext, network: NetworkPlan, samples: int) -> list[StageChannels]:
    frozen = context.plan.first_trained
    boundaries = [stage_boundary(network, stage, samples, frozen) for stage in context.stages]
    return connect(boundaries, context.groups.line.handle, context.device)


def make_guard(
    context: ProcessContext, network: Network, groups: Sequence[ParameterGroup]
) -> StepGuard:
    """All processes of a run have the same one, over their own gradients."""
    config, scale = context.plan.config, LossScale(context.plan.loop.loss_scale)
    wish = config.loss
    watches = config.precision.enable_fp_exceptions
    policy = NonFinitePolicy(wish.on_nonfinite == "skip", wish.max_skipped, watches)
    counters = _range_counters(context, groups)
    # Programs of torch.compile run without the hooks of their layers.
    traps = None if config.compiler.compile else _traps(context, network, groups)
    return StepGuard(context.control, scale, policy, counters, traps)


def _range_counters(
    context: ProcessContext, groups: Sequence[ParameterGroup]
) -> list[GradientRangeCounter]:
    """One for each group whose gradients have 16 bits, if anybody wants to know or to clip."""
    counts = context.plan.loop.loss_scale.automatic
    saturates = context.plan.config.precision.saturate_on_overflow
    counters = []
    for one in groups:
        compute = one.optimizer.policy.compute
        if compute != FLOAT32 and (counts or saturates):
            one.gradients.on_leaf = counter = GradientRangeCounter(compute, counts, saturates)
            counters.append(counter)
    return counters


def _traps(context: ProcessContext, network: Network, groups: Sequence[ParameterGroup]) -> Traps:
    names = [layer.name for layer in context.plan.network.layers]
    layers = [
        Watched(stage.first + number, module, one.position, one.arithmetic.number)
        for stage, one in zip(context.stages, network.slices, strict=True)
        for number, module in enumerate(one.layers.values())
    ]
    return Traps(names, layers, [(one.gradients, one.optimizer.policy.compute) for one in groups])
