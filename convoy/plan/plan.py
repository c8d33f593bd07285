"""RunPlan: everything that can be known of a run before a device is touched."""

from dataclasses import dataclass

from convoy.config.catalog import DATA
from convoy.config.schema import RunConfig
from convoy.plan.batch import BatchPlan
from convoy.plan.layers import LayerCost
from convoy.plan.loop import LoopPlan, plan_loop
from convoy.plan.memory import StageMemory, stage_memory
from convoy.plan.network import NetworkPlan, plan_network
from convoy.plan.schedules import SCHEDULES, Schedule
from convoy.plan.stages import StagePlan, balance, cut, divide
from convoy.plan.topology import TopologyPlan


@dataclass(frozen=True)
class RunPlan:
    """What a configuration means."""

    config: RunConfig
    batch: BatchPlan
    topology: TopologyPlan
    network: NetworkPlan
    stages: tuple[StagePlan, ...]
    devices: tuple[int, ...]
    schedule: Schedule
    memory: tuple[StageMemory, ...]
    loop: LoopPlan

    @property
    def layout(self) -> str:
        """The shape of the convoy in a few words."""
        topology = self.topology
        return (
            f"{topology.replicas} replica{'s' * (topology.replicas > 1)} × "
            f"{topology.stages} stage{'s' * (topology.stages > 1)}"
        )

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
    stages = plan_stages(config, network)
    topology = TopologyPlan(
        config.device.hosts, config.device.instances, config.batch.replicas, len(stages)
    )
    schedule = SCHEDULES[config.pipeline.pipeline_schedule]
    devices = topology.device_map(config.pipeline.device_mapping)
    schedule.check_count(len(stages), batch.gradient_accumulation)
    schedule.check_devices(devices)
    return RunPlan(
        config=config,
        batch=batch,
        topology=topology,
        network=network,
        stages=stages,
        devices=devices,
        schedule=schedule,
        memory=_memory(config, network, stages, batch, schedule),
        loop=plan_loop(config, batch, _samples(config) if samples is None else samples),
    )


def plan_stages(config: RunConfig, network: NetworkPlan) -> tuple[StagePlan, ...]:
    """Cut at the given splits; without any, balance the work."""
    names = [layer.name for layer in network.layers]
    pipeline = config.pipeline
    if pipeline.pipeline_splits or (pipeline.shards or 1) == 1:
        return cut(names, pipeline.pipeline_splits)
    return divide(names, balance([cost.macs for cost in network.costs], pipeline.shards or 1))


def _memory(
    config: RunConfig,
    network: NetworkPlan,
    stages: tuple[StagePlan, ...],
    batch: BatchPlan,
    schedule: Schedule,
) -> tuple[StageMemory, ...]:
    momentum = config.optimizer.momentum > 0
    return tuple(
        stage_memory(
            network.costs[one.first : one.last + 1],
            batch,
            schedule,
            (one.stage, len(stages)),
            momentum,
        )
        for one in stages
    )


def _samples(config: RunConfig) -> int:
    entry = DATA[config.data.data]
    samples = config.data.samples or entry.train
    assert samples is not None
    return samples
