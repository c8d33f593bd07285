"""RunPlan: everything that can be known of a run before a device is touched."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convoy.config.catalog import DATA
from convoy.config.schema import RunConfig, build_config, flat_values
from convoy.errors import ConfigError
from convoy.models.layers import LayerCost, LayerPlan
from convoy.models.network import NetworkPlan, plan_network, plan_training_network
from convoy.plan.loop import LoopPlan, plan_loop
from convoy.plan.memory import (
    RecomputePlan,
    StagedNetwork,
    StageMemory,
    plan_memory,
    plan_recompute,
    recomputes,
)
from convoy.plan.parameters import (
    frozen_layers,
    number_bytes,
    refuse_idle_patterns,
    share_of_squares_kept,
    trained_parameters,
)
from convoy.plan.schedules import Schedule, schedule_of
from convoy.plan.stages import (
    StagePlan,
    balance,
    cut,
    divide,
)
from convoy.plan.topology import BatchPlan, TopologyPlan
from convoy.text import counted


@dataclass(frozen=True)
class RunPlan:
    """What a configuration means, down to its layers."""

    config: RunConfig
    batch: BatchPlan
    topology: TopologyPlan
    devices: tuple[int, ...]  # of each process of a replica
    schedule: Schedule
    loop: LoopPlan
    network: NetworkPlan
    validation_network: NetworkPlan  # the same layers for whole images: training may take smaller
    stages: tuple[StagePlan, ...]
    folded_stages: tuple[StagePlan, ...]  # those that one process runs as one, if there are any
    recompute: RecomputePlan
    num_frozen: int  # layers before the first that is trained
    trained_parameters: tuple[int, ...]  # of each layer

    @property
    def layout(self) -> str:
        """Replicas and stages in a few words."""
        processes = self.topology.stages
        around = f" on {processes} devices" if len(self.stages) > processes else ""
        replicas = counted(self.topology.replicas, "replica")
        return f"{replicas} × {counted(len(self.stages), 'stage')}{around}"

    @property
    def balanced(self) -> bool:
        """Whether the borders between stages are chosen by cost."""
        return not self.config.pipeline.pipeline_splits and self.config.pipeline.stages > 1

    def device_of(self, stage: int) -> int:
        return self.devices[stage % self.topology.stages]

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """What each stage holds: half the work of a plan, so computed when it is needed."""
        layers, costs = self.network.layers, self.network.costs
        staged = StagedNetwork(
            layers, costs, self.stages, self.schedule, self.recompute, self.trained_parameters
        )
        return plan_memory(staged, self.batch, self.config.memory, number_bytes(self.config))

    def stages_of(self, process: int) -> tuple[StagePlan, ...]:
        """What one process of a replica runs: one stage, or several with `looped`."""
        return self.stages[process :: self.topology.stages]

    @property
    def borders(self) -> tuple[str, ...]:
        """Where all stages but the first begin, folded ones too, by the layers' own names."""
        return tuple(stage.names[0] for stage in (self.folded_stages or self.stages)[1:])

    @property
    def frozen_layers(self) -> tuple[LayerPlan, ...]:
        return self.network.layers[: self.num_frozen]

    @property
    def first_trained(self) -> int:
        """The layer from which on gradients are needed."""
        filtered = self.config.optimizer.variable_filter
        changing = (at for at, count in enumerate(self.trained_parameters) if count)
        return next(changing) if filtered else self.num_frozen

    def layer_costs(self, stage: StagePlan) -> tuple[LayerCost, ...]:
        return self.network.costs[stage.first : stage.last + 1]


def plan_run(config: RunConfig, samples: int | None = None) -> RunPlan:
    """Plan a run over `samples` training samples; unknown, the data set's usual number."""
    network = plan_training_network(config)
    network.check_micro_batch(config.batch.micro_batch_size)
    refuse_idle_patterns(config, network.layers)
    cut_stages, batch = plan_stages(config, network), plan_batch(config)
    share_of_squares_kept(config.optimizer, batch.samples_per_update)
    schedule = _plan_schedule(config, batch)
    topology = _plan_topology(config, schedule, batch)
    devices = _plan_devices(config, schedule, topology)
    is_recomputed = recomputes(config.memory, schedule, config.pipeline.stages)
    loop = plan_loop(config, batch, usual_samples(config) if samples is None else samples)
    folded = cut_stages if config.pipeline.folds_into_one else ()
    first, halves = (
        config.fine_tune.fine_tune_first_trainable_layer,
        config.fine_tune.half_res_training,
    )
    num_frozen = 0 if halves else frozen_layers(network.layers, first)
    names = [layer.name for layer in network.layers]
    return RunPlan(
        config=config,
        batch=batch,
        topology=topology,
        devices=devices,
        schedule=schedule,
        loop=loop,
        network=network,
        validation_network=plan_network(config) if halves else network,
        stages=cut(names, ()) if folded else cut_stages,
        folded_stages=folded,
        recompute=_plan_recompute(config, names, folded) if is_recomputed else RecomputePlan(False),
        num_frozen=num_frozen,
        trained_parameters=trained_parameters(
            network.layers, num_frozen, config.optimizer.variable_filter
        ),
    )


def _plan_schedule(config: RunConfig, batch: BatchPlan) -> Schedule:
    wish = config.pipeline
    schedule = schedule_of(wish.pipeline_schedule, wish.stages_per_device)
    schedule.check_count(wish.planned_stages, batch.gradient_accumulation)
    return schedule


def _plan_topology(config: RunConfig, schedule: Schedule, batch: BatchPlan) -> TopologyPlan:
    processes = config.pipeline.planned_stages // schedule.stages_per_process
    return TopologyPlan(config.device.hosts, config.device.instances, batch.replicas, processes)


def _plan_devices(config: RunConfig, schedule: Schedule, topology: TopologyPlan) -> tuple[int, ...]:
    mapping = config.pipeline.device_mapping
    is_one = config.pipeline.folds_into_one
    devices = topology.device_map(tuple(dict.fromkeys(mapping)) if is_one else mapping)
    schedule.check_devices(devices)
    return devices


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
    splits, stages = config.pipeline.pipeline_splits, config.pipeline.stages
    if splits or stages == 1:
        return cut(names, splits)
    return divide(names, balance([cost.macs for cost in network.costs], stages))


def _plan_recompute(
    config: RunConfig, names: Sequence[str], folded: tuple[StagePlan, ...]
) -> RecomputePlan:
    """What comes into the stages of one process is kept as well."""
    patterns = config.memory.recompute_checkpoints
    return plan_recompute(patterns, names, [stage.first for stage in folded[1:]])


NAMES = ("training", "fine-tuning")

# What is different in fine-tuning, whatever was asked for: whole images as they are seen in
# validation, plain gradient descent, a cosine from its first update to its last.
_FIXED: dict[str, Any] = {
    "half_res_training": False,
    "augment": False,
    "use_bbox_info": False,
    "mixup_alpha": 0.0,
    "cutmix_lambda_low": 0.0,
    "cutmix_lambda_high": 0.0,
    "updates": None,
    "base_learning_rate_exponent": None,
    "lr_schedule": "cosine",
    "lr_drops": None,
    "lr_scheduler_freq": 0.0,
    "warmup_epoch": 0.0,
    "optimizer": "sgd",
    "momentum": 0.0,
    "initial_loss_scaling": None,  # the ladder was climbed in training
    "pretrained": None,
    "ckpt_epochs_offset": None,
    "weight_avg_strategy": "none",
    "ema_decay": 0.0,
}
# As the user knows them: an error of the second phase must name what can be changed.
_SPELLED = {
    "--micro-batch-size": "--fine-tune-micro-batch-size",
    "--gradient-accumulation": "--fine-tune-gradient-accumulation",
}


def plan_phases(plan: RunPlan) -> tuple[RunPlan, ...]:
    """The phases of a run, of which the first is the plan itself; most runs have no other."""
    if not plan.config.fine_tune.half_res_training:
        return (plan,)
    values = fine_tuning_values(plan.config, plan.loop.updates, plan.loop.epochs)
    config = build_config(flat_values(plan.config) | values)
    try:
        return plan, plan_run(config, plan.loop.samples)
    except ConfigError as error:
        raise ConfigError(f"fine-tuning: {_respelled(str(error))}") from error


def fine_tuning_values(config: RunConfig, updates: int, epochs: float) -> dict[str, Any]:
    """The options whose values are others after a first phase of so many updates and epochs."""
    wish, stop_after = config.fine_tune, config.length.stop_after or 0
    return _FIXED | {
        "micro_batch_size": wish.fine_tune_micro_batch_size,
        "gradient_accumulation": wish.fine_tune_gradient_accumulation,
        "epoch": float(wish.fine_tune_epoch),
        "epochs_before": config.length.epochs_before + epochs,
        # Counted over both phases; a stop at the end of the first has been asked for by then.
        "stop_after": stop_after - updates if stop_after > updates else None,
        "lr": wish.fine_tune_lr,
    }


def _respelled(text: str) -> str:
    for option, own in _SPELLED.items():
        text = text.replace(option, own)
    return text
