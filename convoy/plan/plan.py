"""RunPlan: everything that can be known of a run before a device is touched.

OutlinePlan is the part of it that needs no layers.
"""

from dataclasses import dataclass
from functools import cached_property

from convoy.config.catalog import DATA
from convoy.config.schema import RunConfig
from convoy.plan.batch import BatchPlan
from convoy.plan.frozen import frozen_layers
from convoy.plan.layers import LayerCost, LayerPlan
from convoy.plan.line import asked_stages, folds_into_one, planned_stages
from convoy.plan.loop import LoopPlan, plan_loop
from convoy.plan.memory import StagedNetwork, StageMemory, plan_memory
from convoy.plan.network import NetworkPlan, plan_network, plan_training_network
from convoy.plan.optimizer import share_of_squares_kept
from convoy.plan.patterns import refuse_idle_patterns
from convoy.plan.precision import number_bytes
from convoy.plan.recompute import RecomputePlan, plan_recompute, recomputes
from convoy.plan.schedules import Schedule, schedule_of
from convoy.plan.stages import StagePlan, balance, cut, divide
from convoy.plan.topology import TopologyPlan
from convoy.plan.trained import trained_parameters
from convoy.plan.wording import counted


@dataclass(frozen=True)
class OutlinePlan:
    """What a configuration means, whatever the layers are."""

    config: RunConfig
    batch: BatchPlan
    topology: TopologyPlan
    devices: tuple[int, ...]
    schedule: Schedule
    recomputes: bool
    loop: LoopPlan

    @property
    def line(self) -> int:
        """Stages that a micro-batch passes, one after the other."""
        return self.schedule.stages_on(self.topology.stages)

    @property
    def layout(self) -> str:
        """The shape of the convoy in a few words."""
        processes = self.topology.stages
        around = f" on {processes} devices" if self.line > processes else ""
        replicas = counted(self.topology.replicas, "replica")
        return f"{replicas} × {counted(self.line, 'stage')}{around}"

    @property
    def balanced(self) -> bool:
        """Whether the borders between stages are chosen by cost."""
        return not self.config.pipeline.pipeline_splits and asked_stages(self.config.pipeline) > 1

    @property
    def folds(self) -> int:
        """Stages that one process runs as one, if there are any."""
        wish = self.config.pipeline
        return asked_stages(wish) if folds_into_one(wish) else 0

    def device_of(self, stage: int) -> int:
        return self.devices[stage % self.topology.stages]


@dataclass(frozen=True)
class RunPlan(OutlinePlan):
    """What a configuration means, down to its layers."""

    network: NetworkPlan
    validation_network: NetworkPlan  # the same layers for whole images: training may take smaller
    stages: tuple[StagePlan, ...]  # what each process of a line runs
    folded: tuple[StagePlan, ...]  # stages that one process runs as one, if there are any
    recompute: RecomputePlan
    frozen: int  # layers before the first that is trained: they rest
    trains: tuple[int, ...]  # parameters of each layer that change

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """What each stage holds: half the work of a plan, so not before somebody asks."""
        layers, costs = self.network.layers, self.network.costs
        staged = StagedNetwork(
            layers, costs, self.stages, self.schedule, self.recompute, self.trains
        )
        return plan_memory(staged, self.batch, self.config.memory, number_bytes(self.config))

    def stages_of(self, process: int) -> tuple[StagePlan, ...]:
        """What one process of a line runs: one stage, or one for each time around."""
        return self.stages[process :: self.topology.stages]

    @property
    def borders(self) -> tuple[str, ...]:
        """Where all stages but the first begin, folded ones too, by the layers' own names."""
        return tuple(stage.names[0] for stage in (self.folded or self.stages)[1:])

    @property
    def frozen_layers(self) -> tuple[LayerPlan, ...]:
        return self.network.layers[: self.frozen]

    @property
    def first_trained(self) -> int:
        """The layer from which on gradients are needed."""
        filtered = self.config.optimizer.variable_filter
        changing = (at for at, count in enumerate(self.trains) if count)
        return next(changing) if filtered else self.frozen

    def layer_costs(self, stage: StagePlan) -> tuple[LayerCost, ...]:
        return self.network.costs[stage.first : stage.last + 1]


def plan_run(config: RunConfig, samples: int | None = None) -> RunPlan:
    """Plan a run over `samples` training samples; unknown, the data set's usual number."""
    network = plan_training_network(config)
    network.check_micro_batch(config.batch.micro_batch_size)
    refuse_idle_patterns(config, network.layers)
    asked = plan_stages(config, network)
    wish, first = config.fine_tune, config.fine_tune.fine_tune_first_trainable_layer
    outline = plan_outline(config, samples)
    folded = asked if outline.folds else ()
    frozen = 0 if wish.half_res_training else frozen_layers(network.layers, first)
    stages = cut([layer.name for layer in network.layers], ()) if folded else asked
    return RunPlan(
        config=config,
        batch=outline.batch,
        topology=outline.topology,
        devices=outline.devices,
        schedule=outline.schedule,
        recomputes=outline.recomputes,
        loop=outline.loop,
        network=network,
        validation_network=plan_network(config) if wish.half_res_training else network,
        stages=stages,
        folded=folded,
        recompute=_plan_recompute(outline, network, folded),
        frozen=frozen,
        trains=trained_parameters(network.layers, frozen, config.optimizer.variable_filter),
    )


def plan_outline(config: RunConfig, samples: int | None = None) -> OutlinePlan:
    """The same without the network. Every rule that needs no layer is heard here."""
    batch, wish, device = plan_batch(config), config.pipeline, config.device
    share_of_squares_kept(config.optimizer, batch.samples_per_update)
    stages = planned_stages(wish)
    schedule = schedule_of(wish.pipeline_schedule, wish.stages_per_device)
    schedule.check_count(stages, batch.gradient_accumulation)
    processes = stages // schedule.stages_per_process
    topology = TopologyPlan(device.hosts, device.instances, batch.replicas, processes)
    mapping = wish.device_mapping
    devices = topology.device_map(
        tuple(dict.fromkeys(mapping)) if folds_into_one(wish) else mapping
    )
    schedule.check_devices(devices)
    return OutlinePlan(
        config=config,
        batch=batch,
        topology=topology,
        devices=devices,
        schedule=schedule,
        recomputes=recomputes(config.memory, schedule, asked_stages(wish)),
        loop=plan_loop(config, batch, usual_samples(config) if samples is None else samples),
    )


def plan_batch(config: RunConfig) -> BatchPlan:
    """The batch arithmetic alone: it holds whatever else is refused."""
    wish = config.batch
    return BatchPlan(
        wish.micro_batch_size, wish.gradient_accumulation, wish.replicas, config.replica.bn_span
    )


def usual_samples(config: RunConfig) -> int:
    """Training samples: as asked for, or as the data set has them."""
    samples = config.data.samples or DATA[config.data.data].train
    assert samples is not None
    return used_samples(config, samples)


def used_samples(config: RunConfig, samples: int) -> int:
    """How many of them a run takes."""
    return max(1, samples * config.data.dataset_percentage_to_use // 100)


def plan_stages(config: RunConfig, network: NetworkPlan) -> tuple[StagePlan, ...]:
    """Cut at the given splits; without any, balance the work."""
    names = [layer.name for layer in network.layers]
    splits, stages = config.pipeline.pipeline_splits, asked_stages(config.pipeline)
    if splits or stages == 1:
        return cut(names, splits)
    return divide(names, balance([cost.macs for cost in network.costs], stages))


def _plan_recompute(
    outline: OutlinePlan, network: NetworkPlan, folded: tuple[StagePlan, ...]
) -> RecomputePlan:
    """What comes into the stages of one process is kept as well."""
    if not outline.recomputes:
        return RecomputePlan(False)
    names = [layer.name for layer in network.layers]
    patterns = outline.config.memory.recompute_checkpoints
    return plan_recompute(patterns, names, [stage.first for stage in folded[1:]])
