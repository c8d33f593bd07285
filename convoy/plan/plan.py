"""RunPlan: everything that can be known of a run before a device is touched."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convoy.config.catalog import DATA
from convoy.config.schema import RunConfig, build_config, flat_values
from convoy.errors import ConfigError
from convoy.models.layers import LayerCost, LayerPlan
from convoy.models.network import NetworkPlan, plan_network, plan_training_network
from convoy.plan.activations import WHOLE, activation_footprint
from convoy.plan.loop import LoopPlan, plan_loop
from convoy.plan.memory import (
    RecomputePlan,
    StageMemory,
    most_held,
    most_sums,
    plan_recompute,
    recomputes,
    stage_traffic,
)
from convoy.plan.parameters import (
    NumberBytes,
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
        numbers, sums = number_bytes(self.config), most_sums(self.batch)
        return tuple(self._stage_memory(stage, numbers, sums) for stage in self.stages)

    def _stage_memory(self, stage: StagePlan, numbers: NumberBytes, sums: int) -> StageMemory:
        """Of its replicas, the one that holds most."""
        number, stages, wish = stage.stage, len(self.stages), self.config.memory
        micro_batches, costs = self.batch.gradient_accumulation, self.layer_costs(stage)
        layers = self.network.layers[stage.first : stage.last + 1]
        starts = self.recompute.starts(stage.names)
        held = activation_footprint(layers, costs, starts, is_first=number == 0)
        traffic = stage_traffic(self.schedule, number, stages, micro_batches)
        sets = self.schedule.peak_stash(number, stages, micro_batches)
        sample = numbers.activation * self.batch.micro_batch_size
        trained = sum(self.trained_parameters[stage.first : stage.last + 1])
        owned = -(-trained // (self.batch.replicas if wish.enable_optimizer_rts else 1))
        state, parameters = numbers.state * owned, sum(cost.parameters for cost in costs)
        return StageMemory(
            weights=WHOLE * parameters + numbers.average * owned,
            gradients=(WHOLE + sums * numbers.sum) * trained,
            optimizer_state=0 if wish.offload_optimizer else state,
            offloaded=state if wish.offload_optimizer else 0,
            stash_sets=sets,
            stash=sample * sets * held.between,
            activations=sample * most_held(held, traffic),
            link=sample * held.goes_out if number < stages - 1 else 0,
        )

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
    names = [layer.name for layer in network.layers]
    cut_stages, batch = plan_stages(config, network), plan_batch(config)
    folded = cut_stages if config.pipeline.folds_into_one else ()
    share_of_squares_kept(config.optimizer, batch.samples_per_update)
    schedule, topology, devices = _plan_pipeline(config, batch)
    recompute = RecomputePlan(False)
    is_recomputed = recomputes(config.memory, schedule, config.pipeline.stages)
    loop = plan_loop(config, batch, usual_samples(config) if samples is None else samples)
    fine_tune = config.fine_tune
    halves, first = fine_tune.half_res_training, fine_tune.fine_tune_first_trainable_layer
    num_frozen = 0 if halves else frozen_layers(network.layers, first)
    validation_network = plan_network(config) if halves else network
    if is_recomputed:  # what comes into the stages of one process is kept as well
        patterns, borders = config.memory.recompute_checkpoints, [one.first for one in folded[1:]]
        recompute = plan_recompute(patterns, names, borders)
    return RunPlan(
        config,
        batch,
        topology,
        devices,
        schedule,
        loop,
        network,
        validation_network,
        stages=cut(names, ()) if folded else cut_stages,
        folded_stages=folded,
        recompute=recompute,
        num_frozen=num_frozen,
        trained_parameters=trained_parameters(
            network.layers, num_frozen, config.optimizer.variable_filter
        ),
    )


def _plan_pipeline(
    config: RunConfig, batch: BatchPlan
) -> tuple[Schedule, TopologyPlan, tuple[int, ...]]:
    """The schedule, who stands where, and the device of each process of a replica."""
    wish, device = config.pipeline, config.device
    schedule = schedule_of(wish.pipeline_schedule, wish.stages_per_device)
    schedule.check_count(wish.planned_stages, batch.gradient_accumulation)
    processes = wish.planned_stages // schedule.stages_per_process
    topology = TopologyPlan(device.hosts, device.instances, batch.replicas, processes)
    mapping = wish.device_mapping
    devices = topology.device_map(tuple(dict.fromkeys(mapping)) if wish.folds_into_one else mapping)
    schedule.check_devices(devices)
    return schedule, topology, devices


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
        text = str(error)
        for option, own in _SPELLED.items():
            text = text.replace(option, own)
        raise ConfigError(f"fine-tuning: {text}") from error


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
