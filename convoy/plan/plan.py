"""RunPlan: everything that can be known of a run before a device is touched."""

from dataclasses import dataclass

from convoy.config.catalog import DATA
from convoy.config.schema import RunConfig
from convoy.config.sections.machine import PipelineConfig
from convoy.errors import ConfigError
from convoy.plan.batch import BatchPlan
from convoy.plan.layers import LayerCost
from convoy.plan.loop import LoopPlan, plan_loop
from convoy.plan.memory import StagedNetwork, StageMemory, plan_memory
from convoy.plan.network import NetworkPlan, plan_network
from convoy.plan.recompute import RecomputePlan, plan_recompute
from convoy.plan.schedules import Schedule, schedule_of
from convoy.plan.stages import StagePlan, balance, cut, divide
from convoy.plan.topology import TopologyPlan


@dataclass(frozen=True)
class RunPlan:
    """What a configuration means."""

    config: RunConfig
    batch: BatchPlan
    topology: TopologyPlan
    network: NetworkPlan
    stages: tuple[StagePlan, ...]  # what each process of a line runs
    folded: tuple[StagePlan, ...]  # stages that one process runs as one, if there are any
    devices: tuple[int, ...]
    schedule: Schedule
    recompute: RecomputePlan
    memory: tuple[StageMemory, ...]
    loop: LoopPlan

    @property
    def layout(self) -> str:
        """The shape of the convoy in a few words."""
        topology = self.topology
        replicas, stages, processes = topology.replicas, len(self.stages), topology.stages
        around = f" on {processes} devices" if stages > processes else ""
        return (
            f"{replicas} replica{'s' * (replicas > 1)} × {stages} stage{'s' * (stages > 1)}{around}"
        )

    def stages_of(self, process: int) -> tuple[StagePlan, ...]:
        """What one process of a line runs: one stage, or one for each time around."""
        return self.stages[process :: self.topology.stages]

    @property
    def balanced(self) -> bool:
        """Whether the borders between stages were chosen by cost."""
        return not self.config.pipeline.pipeline_splits and self.borders != ()

    @property
    def borders(self) -> tuple[str, ...]:
        """The first layers of all stages but the first, folded ones too."""
        return tuple(stage.names[0] for stage in (self.folded or self.stages)[1:])

    def device_of(self, stage: StagePlan) -> int:
        return self.devices[stage.stage % self.topology.stages]

    def layer_costs(self, stage: StagePlan) -> tuple[LayerCost, ...]:
        return self.network.costs[stage.first : stage.last + 1]


def plan_run(config: RunConfig, samples: int | None = None) -> RunPlan:
    """Plan a run over `samples` training samples; unknown, the data set's usual number."""
    batch = BatchPlan(
        config.batch.micro_batch_size,
        config.batch.gradient_accumulation,
        config.batch.replicas,
        config.replica.bn_span,
    )
    network = plan_network(config)
    network.check_micro_batch(batch.micro_batch_size)
    line = _plan_line(config, network)
    staged = StagedNetwork(
        network.layers, network.costs, line.stages, line.schedule, line.recompute
    )
    return RunPlan(
        config=config,
        batch=batch,
        topology=line.topology,
        network=network,
        stages=line.stages,
        folded=line.folded,
        devices=line.devices,
        schedule=line.schedule,
        recompute=line.recompute,
        memory=plan_memory(staged, batch, config.memory, config.optimizer.momentum > 0),
        loop=plan_loop(config, batch, _samples(config) if samples is None else samples),
    )


@dataclass(frozen=True)
class _Line:
    """The stages of one replica: where they run, in what order, what they keep."""

    stages: tuple[StagePlan, ...]
    folded: tuple[StagePlan, ...]
    topology: TopologyPlan
    devices: tuple[int, ...]
    schedule: Schedule
    recompute: RecomputePlan


def _plan_line(config: RunConfig, network: NetworkPlan) -> _Line:
    """Cut the network and share it out. Sequential stages of one device are folded into one."""
    names = [layer.name for layer in network.layers]
    wish, device = config.pipeline, config.device
    asked = plan_stages(config, network)
    folds = _are_one(wish, len(asked))
    stages = cut(names, ()) if folds else asked
    schedule = schedule_of(wish.pipeline_schedule, wish.stages_per_device)
    schedule.check_count(len(stages), config.batch.gradient_accumulation)
    processes = len(stages) // schedule.stages_per_process
    topology = TopologyPlan(device.hosts, device.instances, config.batch.replicas, processes)
    mapping = tuple(dict.fromkeys(wish.device_mapping)) if folds else wish.device_mapping
    devices = topology.device_map(mapping)
    schedule.check_devices(devices)
    borders = [stage.first for stage in asked[1:]] if folds else []
    whole = schedule.allows_recompute or len(asked) == 1
    recompute = plan_recompute(config.memory, names, len(asked) if whole else 1, borders)
    if recompute.enabled and not whole:
        raise ConfigError(
            f"--enable-recompute cannot be used with --pipeline-schedule {schedule.name}: each "
            "half of a backward pass would compute its forward again; leave it out, or use "
            "--pipeline-schedule interleaved"
        )
    return _Line(stages, asked if folds else (), topology, devices, schedule, recompute)


def plan_stages(config: RunConfig, network: NetworkPlan) -> tuple[StagePlan, ...]:
    """Cut at the given splits; without any, balance the work."""
    names = [layer.name for layer in network.layers]
    pipeline = config.pipeline
    if pipeline.pipeline_splits or (pipeline.shards or 1) == 1:
        return cut(names, pipeline.pipeline_splits)
    return divide(names, balance([cost.macs for cost in network.costs], pipeline.shards or 1))


def _are_one(wish: PipelineConfig, stages: int) -> bool:
    """Whether all stages are to take turns on one device: they would only wait for each other."""
    mapping = wish.device_mapping
    share = wish.shards == 1 or (len(mapping) == stages and len(set(mapping)) == 1)
    return wish.pipeline_schedule == "sequential" and stages > 1 and share


def _samples(config: RunConfig) -> int:
    entry = DATA[config.data.data]
    samples = config.data.samples or entry.train
    assert samples is not None
    return samples
