"""RunPlan: everything that is known about a run before a device is used."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convoy.config.schema import RunConfig, build_config, flatten_config
from convoy.config.sections.data import DATA
from convoy.errors import ConfigError
from convoy.models.layers import LayerCost, LayerPlan
from convoy.models.network import NetworkPlan, plan_network, plan_training_network
from convoy.planning.activations import FP32_BYTES, activation_footprint
from convoy.planning.loop import LoopPlan, plan_loop
from convoy.planning.memory import (
    RecomputePlan,
    StageMemory,
    peak_activations,
    peak_tree_vectors,
    plan_recompute,
    resolve_recompute,
    stage_traffic,
)
from convoy.planning.parameters import (
    ElementBytes,
    check_parameter_patterns,
    element_bytes,
    frozen_layers,
    rmsprop_smoothing,
    trained_parameters,
)
from convoy.planning.schedules import Schedule, make_schedule
from convoy.planning.stages import StagePlan, balance, split_into_stages, stages_from_starts
from convoy.planning.topology import BatchPlan, TopologyPlan
from convoy.text import pluralize


@dataclass(frozen=True)
class RunPlan:
    """The consequences of a configuration, down to single layers."""

    config: RunConfig
    batch: BatchPlan
    topology: TopologyPlan
    process_devices: tuple[int, ...]  # of each process of a replica
    schedule: Schedule
    loop: LoopPlan
    network: NetworkPlan
    validation_network: NetworkPlan  # the same layers for full-size images
    stages: tuple[StagePlan, ...]
    folded_stages: tuple[StagePlan, ...]  # stages that one process runs as one
    recompute: RecomputePlan
    num_frozen: int  # layers before the first trained one
    trained_parameters: tuple[int, ...]  # of each layer

    @property
    def layout(self) -> str:
        """Replicas and stages as text."""
        processes = self.topology.stages
        devices = f" on {processes} devices" if len(self.stages) > processes else ""
        replicas = pluralize(self.topology.replicas, "replica")
        return f"{replicas} × {pluralize(len(self.stages), 'stage')}{devices}"

    @property
    def is_balanced(self) -> bool:
        """Whether stage boundaries are chosen by cost."""
        return not self.config.pipeline.pipeline_splits and self.config.pipeline.stages > 1

    def device_of(self, stage: int) -> int:
        return self.process_devices[stage % self.topology.stages]

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """Peak memory of each stage, computed on demand: it is half the work of a plan."""
        sizes, sums = element_bytes(self.config), peak_tree_vectors(self.batch)
        return tuple(self._stage_memory(stage, sizes, sums) for stage in self.stages)

    def _stage_memory(self, stage: StagePlan, sizes: ElementBytes, sums: int) -> StageMemory:
        """Peak memory of a stage, on the replica that needs the most."""
        index, stages, config = stage.stage, len(self.stages), self.config.memory
        micro_batches, costs = self.batch.gradient_accumulation, self.layer_costs(stage)
        layers = self.network.layers[stage.first : stage.last + 1]
        starts = self.recompute.segment_starts(stage.names)
        footprint = activation_footprint(layers, costs, starts, is_first=index == 0)
        traffic = stage_traffic(self.schedule, index, stages, micro_batches)
        sets = self.schedule.peak_stash(index, stages, micro_batches)
        sample = sizes.activation * self.batch.micro_batch_size
        trained = sum(self.trained_parameters[stage.first : stage.last + 1])
        shard = -(-trained // (self.batch.replicas if config.enable_optimizer_rts else 1))
        state, parameters = sizes.state * shard, sum(cost.parameters for cost in costs)
        return StageMemory(
            weights=FP32_BYTES * parameters + sizes.ema * shard,
            gradients=(FP32_BYTES + sums * sizes.accumulator) * trained,
            optimizer_state=0 if config.offload_optimizer else state,
            offloaded=state if config.offload_optimizer else 0,
            stash_sets=sets,
            stash=sample * sets * footprint.stashed,
            activations=sample * peak_activations(footprint, traffic),
            link=sample * footprint.output_elements if index < stages - 1 else 0,
        )

    def stages_of(self, process: int) -> tuple[StagePlan, ...]:
        """The stages of one process of a replica: one, or several with `looped`."""
        return self.stages[process :: self.topology.stages]

    @property
    def stage_starts(self) -> tuple[str, ...]:
        """Names of the first layers of all stages but the first, including folded stages."""
        return tuple(stage.names[0] for stage in (self.folded_stages or self.stages)[1:])

    @property
    def frozen_layers(self) -> tuple[LayerPlan, ...]:
        return self.network.layers[: self.num_frozen]

    @property
    def first_trained_layer(self) -> int:
        """Index of the first layer that needs gradients."""
        filtered = self.config.optimizer.variable_filter
        trained = (index for index, count in enumerate(self.trained_parameters) if count)
        return next(trained) if filtered else self.num_frozen

    def layer_costs(self, stage: StagePlan) -> tuple[LayerCost, ...]:
        return self.network.costs[stage.first : stage.last + 1]


def plan_run(config: RunConfig, samples: int | None = None) -> RunPlan:
    """Plan a run over `samples` training samples; by default those of the dataset."""
    network = plan_training_network(config)
    network.check_micro_batch(config.batch.micro_batch_size)
    check_parameter_patterns(config, network.layers)
    names = [layer.name for layer in network.layers]
    cut_stages, batch = plan_stages(config, network), plan_batch(config)
    folded = cut_stages if config.pipeline.shares_one_device else ()
    rmsprop_smoothing(config.optimizer, batch.samples_per_update)
    schedule, topology, devices = _plan_pipeline(config, batch)
    recompute = RecomputePlan(False)
    is_recomputed = resolve_recompute(config.memory, schedule, config.pipeline.stages)
    loop = plan_loop(config, batch, default_num_samples(config) if samples is None else samples)
    fine_tune = config.fine_tune
    half_res, first = fine_tune.half_res_training, fine_tune.fine_tune_first_trainable_layer
    num_frozen = 0 if half_res else frozen_layers(network.layers, first)
    validation_network = plan_network(config) if half_res else network
    if is_recomputed:  # the inputs of folded stages are stored as well
        boundaries = [stage.first for stage in folded[1:]]
        recompute = plan_recompute(config.memory.recompute_checkpoints, names, boundaries)
    return RunPlan(
        config,
        batch,
        topology,
        devices,
        schedule,
        loop,
        network,
        validation_network,
        stages=split_into_stages(names, ()) if folded else cut_stages,
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
    """The schedule, the topology, and the device of each process of a replica."""
    pipeline, device = config.pipeline, config.device
    schedule = make_schedule(pipeline.pipeline_schedule, pipeline.stages_per_device)
    schedule.check_micro_batches(pipeline.planned_stages, batch.gradient_accumulation)
    processes = pipeline.planned_stages // schedule.stages_per_process
    topology = TopologyPlan(device.hosts, device.instances, batch.replicas, processes)
    mapping = pipeline.device_mapping
    if pipeline.shares_one_device:
        mapping = tuple(dict.fromkeys(mapping))
    devices = topology.device_map(mapping)
    schedule.check_devices(devices)
    return schedule, topology, devices


def plan_batch(config: RunConfig) -> BatchPlan:
    """Plan the batch only, which is valid even if other options are refused."""
    batch = config.batch
    return BatchPlan(
        batch.micro_batch_size, batch.gradient_accumulation, batch.replicas, config.replica.bn_span
    )


def default_num_samples(config: RunConfig) -> int:
    """Number of training samples: `--samples`, or that of the dataset."""
    samples = config.data.samples or DATA[config.data.data].train
    assert samples is not None
    return num_used_samples(config, samples)


def num_used_samples(config: RunConfig, samples: int) -> int:
    """Number of samples used; see `--dataset-percentage-to-use`."""
    return max(1, samples * config.data.dataset_percentage_to_use // 100)


def plan_stages(config: RunConfig, network: NetworkPlan) -> tuple[StagePlan, ...]:
    """Split at the given layers, or balance the stages by cost."""
    names = [layer.name for layer in network.layers]
    splits, stages = config.pipeline.pipeline_splits, config.pipeline.stages
    if splits or stages == 1:
        return split_into_stages(names, splits)
    return stages_from_starts(names, balance([cost.work for cost in network.costs], stages))


PHASE_NAMES = ("training", "fine-tuning")

# Options of the fine-tuning phase, whatever was configured: full-size images as in validation,
# plain SGD, and a cosine schedule over the phase.
_FINE_TUNE_OVERRIDES: dict[str, Any] = {
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
    "initial_loss_scaling": None,  # the final scale was reached in training
    "pretrained": None,
    "ckpt_epochs_offset": None,
    "weight_avg_strategy": "none",
    "ema_decay": 0.0,
}
# Errors of the second phase must name the options that configure it.
_FINE_TUNE_FLAGS = {
    "--micro-batch-size": "--fine-tune-micro-batch-size",
    "--gradient-accumulation": "--fine-tune-gradient-accumulation",
}


def plan_phases(plan: RunPlan) -> tuple[RunPlan, ...]:
    """The phases of a run; the first is `plan`, and most runs have only that."""
    if not plan.config.fine_tune.half_res_training:
        return (plan,)
    values = fine_tuning_overrides(plan.config, plan.loop.updates, plan.loop.epochs)
    config = build_config(flatten_config(plan.config) | values)
    try:
        return plan, plan_run(config, plan.loop.samples)
    except ConfigError as error:
        text = str(error)
        for option, fine_tune_option in _FINE_TUNE_FLAGS.items():
            text = text.replace(option, fine_tune_option)
        raise ConfigError(f"fine-tuning: {text}") from error


def fine_tuning_overrides(config: RunConfig, updates: int, epochs: float) -> dict[str, Any]:
    """The options that differ in fine-tuning, after a first phase of `updates` and `epochs`."""
    fine_tune, stop_after = config.fine_tune, config.length.stop_after or 0
    return _FINE_TUNE_OVERRIDES | {
        "micro_batch_size": fine_tune.fine_tune_micro_batch_size,
        "gradient_accumulation": fine_tune.fine_tune_gradient_accumulation,
        "epoch": float(fine_tune.fine_tune_epoch),
        "epochs_before": config.length.epochs_before + epochs,
        # Counted over both phases; a stop in the first phase has already happened.
        "stop_after": stop_after - updates if stop_after > updates else None,
        "lr": fine_tune.fine_tune_lr,
    }
