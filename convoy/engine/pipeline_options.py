"""Options of `pipeline`, and the rules between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from convoy.engine.custom_stages import StageFunction, StageNode
from convoy.engine.gradient_step import (
    DtypeChoice,
    GradientMap,
    StepOptions,
    check_dtype_choice,
)
from convoy.engine.outfeed import Outfeed
from convoy.errors import ConfigError
from convoy.layers.modules import sequential_layers
from convoy.planning.schedules import SCHEDULES, Schedule, format_shared_devices
from convoy.registry import suggest

Stages = Sequence[StageFunction | Sequence[StageFunction]]

# Arguments of the programming guide: what they are called here, or why they do not exist.
_GUIDE_ARGUMENTS = {
    "computational_stages": "use stages",
    "gradient_accumulation_count": "use gradient_accumulation",
    "gradient_accumulation_dtype": "use accumulator_dtype",
    "infeed_queue": "use infeed",
    "outfeed_queue": "use outfeed",
    "inputs": "pass them when you call the pipeline",
    "optimizer_function": "use loss_fn and optimizer",
    "pipeline_schedule": "use schedule",
    "recomputation_mode": "use recompute",
    "offload_weight_update_variables": "use offload_optimizer",
    "replicated_optimizer_state_sharding": "use shard_optimizer",
    "offload_gradient_accumulation_buffers": "use offload_accumulators",
    "reduction_method": "use reduction",
    "forward_propagation_stages_poplar_options": "stages have no compiler options",
    "backward_propagation_stages_poplar_options": "stages have no compiler options",
    "weight_update_poplar_options": "the update has no compiler options",
    "name": "pipelines have no name",
}
_NOT_IMPLEMENTED = {
    "batch_serialization_iterations": "an inner loop per stage is not implemented",
    "continuous_weight_updates": "weights change once per update",
    "replicated_weight_sharding": "weights are not sharded",
    "offload_weights": "weights stay on their device",
}
_RECOMPUTE_SCHEDULES = {
    "stage": ("grouped", "interleaved", "1f1b"),
    "segments": ("grouped", "sequential"),
}


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options of a pipeline; `pipeline` documents them."""

    gradient_accumulation: int | None = None
    repeat_count: int = 1
    loss_fn: Callable[..., Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    device_mapping: Sequence[int | Sequence[int]] | None = None
    schedule: str = "grouped"
    recompute: str | None = None
    recompute_checkpoints: Sequence[str] = ()
    accumulator_dtype: DtypeChoice = None
    reduction: str = "mean"
    map_gradient: GradientMap | None = None
    offload_optimizer: bool = False
    offload_activations: bool = False
    offload_accumulators: bool = False
    shard_optimizer: bool = False
    outfeed_loss: bool = False
    outfeed_mask: Sequence[bool] | None = None
    accumulate_outfeed: bool = False
    accumulate_outfeed_dtype: DtypeChoice = None
    replicas: int | None = None

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]

    @classmethod
    def of(cls, values: dict[str, Any]) -> "PipelineOptions":
        """Check the names of keyword arguments."""
        names = cls.names()
        for name in values:
            if name in _NOT_IMPLEMENTED:
                raise NotImplementedError(f"{name} is not available: {_NOT_IMPLEMENTED[name]}")
            if name in _GUIDE_ARGUMENTS:
                raise TypeError(f"pipeline() has no argument {name}; {_GUIDE_ARGUMENTS[name]}")
            if name not in names:
                raise TypeError(f"pipeline() has no argument {name}; {suggest(name, names)}")
        return cls(**values)

    @property
    def trains(self) -> bool:
        return self.optimizer is not None

    @property
    def step_options(self) -> StepOptions:
        assert self.gradient_accumulation is not None
        return StepOptions(
            self.gradient_accumulation,
            self.accumulator_dtype,
            self.reduction,
            self.map_gradient,
            self.offload_optimizer,
            self.offload_accumulators,
            self.shard_optimizer,
        )


def check_options(options: PipelineOptions, stages: Stages, outfeed: Outfeed | None) -> Schedule:
    """Raise an error for the first broken rule; return the schedule."""
    if not isinstance(stages, Sequence) or len(stages) < 2:
        raise ValueError("a pipeline needs a list of at least 2 stages")
    if options.gradient_accumulation is None:
        raise ValueError("gradient_accumulation is required: the micro-batches of one update")
    _ = options.step_options  # checks its values
    if isinstance(options.repeat_count, bool) or not isinstance(options.repeat_count, int):
        raise TypeError(f"repeat_count must be an integer, got {options.repeat_count!r}")
    if options.repeat_count < 1:
        raise ValueError(f"repeat_count must be at least 1, got {options.repeat_count}")
    _check_optimizer(options)
    schedule = _find_schedule(options.schedule)
    _check_count(options, schedule, len(stages))
    _check_recompute(options, schedule, stages)
    _check_outfeed(options, outfeed)
    return schedule


def _check_optimizer(options: PipelineOptions) -> None:
    optimizer: Any = options.optimizer
    loss_fn: Any = options.loss_fn
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        name = type(optimizer).__name__
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {name}")
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn must be a function, got {type(loss_fn).__name__}")
    if (optimizer is None) != (loss_fn is None):
        missing = "optimizer" if optimizer is None else "loss_fn"
        raise ValueError(f"{missing} is missing: training needs optimizer and loss_fn")


def _find_schedule(name: Any) -> Schedule:
    if not isinstance(name, str):
        raise TypeError(f"schedule must be the name of a schedule, got {type(name).__name__}")
    if name not in SCHEDULES:
        raise ValueError(f"schedule {name!r} is unknown; {suggest(name, SCHEDULES)}")
    return SCHEDULES[name]


def _check_count(options: PipelineOptions, schedule: Schedule, stages: int) -> None:
    """The micro-batches must fill the pipeline; an inference pipeline has half as many slots."""
    count = options.gradient_accumulation
    assert count is not None
    if not options.trains:
        fills = schedule.any_micro_batches or not schedule.in_flight_per_stage
        if not fills and count % stages:
            raise ValueError(
                f"{schedule.name} with {stages} stages and no optimizer needs "
                f"gradient_accumulation to be a multiple of {stages}, got {count}"
            )
        return
    try:
        schedule.check_micro_batches(stages, count)
    except ConfigError as error:
        text = str(error).replace("--gradient-accumulation", "gradient_accumulation")
        text = text.replace("--pipeline-schedule ", "schedule ")
        raise ValueError(text) from None


def _check_recompute(options: PipelineOptions, schedule: Schedule, stages: Stages) -> None:
    mode = options.recompute
    if mode is not None and mode not in _RECOMPUTE_SCHEDULES:
        raise ValueError(f"recompute must be None, 'stage' or 'segments', got {mode!r}")
    if mode is not None and schedule.name not in _RECOMPUTE_SCHEDULES[mode]:
        names = " and ".join(_RECOMPUTE_SCHEDULES[mode])
        raise ValueError(f"recompute={mode!r} works with {names}, not with {schedule.name}")
    if options.recompute_checkpoints and mode != "segments":
        raise ValueError("recompute_checkpoints need recompute='segments'")
    layers = dict.fromkeys(name for stage in stages for name in _layer_names(stage))
    for name in options.recompute_checkpoints:
        if name not in layers:
            raise ValueError(
                f"recompute_checkpoints contains {name!r}, but no stage is an nn.Sequential with "
                f"this layer; the layers are {', '.join(layers) or 'none'}"
            )


def _layer_names(stage: Any) -> list[str]:
    """The names of the layers of a stage that is an `nn.Sequential`."""
    if isinstance(stage, list | tuple):
        return [name for branch in stage for name in _layer_names(branch)]
    return (
        [name for name, _ in sequential_layers(stage)] if isinstance(stage, nn.Sequential) else []
    )


def _check_outfeed(options: PipelineOptions, outfeed: Outfeed | None) -> None:
    if outfeed is not None and not isinstance(outfeed, Outfeed):
        raise TypeError(f"outfeed must be a convoy.Outfeed, got {type(outfeed).__name__}")
    for name in ("outfeed_loss", "outfeed_mask"):
        chosen = options.outfeed_loss if name == "outfeed_loss" else options.outfeed_mask
        if chosen and not options.trains:
            raise ValueError(f"{name} needs an optimizer and a loss_fn")
    if options.outfeed_loss and options.outfeed_mask is not None:
        raise ValueError("outfeed_loss and outfeed_mask cannot be combined; use one of them")
    needs_outfeed = (
        options.outfeed_loss or options.accumulate_outfeed or options.outfeed_mask is not None
    )
    if needs_outfeed and outfeed is None:
        raise ValueError("outfeed_loss, outfeed_mask and accumulate_outfeed need an outfeed")
    if options.accumulate_outfeed and outfeed is not None and outfeed.mode != "all":
        raise ValueError("accumulate_outfeed needs an outfeed with mode 'all'")
    check_dtype_choice("accumulate_outfeed_dtype", options.accumulate_outfeed_dtype)
    if options.accumulate_outfeed_dtype is not None and not options.accumulate_outfeed:
        raise ValueError("accumulate_outfeed_dtype needs accumulate_outfeed")


def make_nodes(
    stages: Stages, options: PipelineOptions, schedule: Schedule
) -> list[list[StageNode]]:
    """The stages with their devices; concurrent stages are lists."""
    branches = [list(stage) if isinstance(stage, list | tuple) else [stage] for stage in stages]
    for index, functions in enumerate(branches):
        _check_functions(index, functions, is_last=index == len(branches) - 1)
    devices = _make_mapping(branches, options.device_mapping)
    _check_devices(devices, options, schedule)
    return [
        [
            StageNode(index, branch, len(functions), function, device)
            for branch, (function, device) in enumerate(zip(functions, mapped, strict=True))
        ]
        for index, (functions, mapped) in enumerate(zip(branches, devices, strict=True))
    ]


def _check_functions(index: int, functions: list[Any], is_last: bool) -> None:
    if not functions:
        raise ValueError(f"stage {index} is an empty list")
    for function in functions:
        if isinstance(function, list | tuple):
            raise ValueError(
                f"stage {index} contains nested lists; concurrent stages cannot be nested"
            )
        if not callable(function):
            name = type(function).__name__
            raise TypeError(f"stage {index} must be a function or a module, got {name}")
    if is_last and len(functions) > 1:
        raise ValueError(
            f"stage {index}, the last one, is concurrent; add a stage that takes the outputs of "
            "all branches"
        )


def _make_mapping(
    branches: Sequence[Sequence[Any]], mapping: Sequence[int | Sequence[int]] | None
) -> list[list[int]]:
    """The device of every stage; by default one each, in order."""
    if mapping is None:
        numbers = iter(range(sum(map(len, branches))))
        return [[next(numbers) for _ in functions] for functions in branches]
    if len(mapping) != len(branches):
        raise ValueError(
            f"device_mapping has {len(mapping)} entries for {len(branches)} stages; "
            "list one device per stage"
        )
    devices = [list(item) if isinstance(item, Sequence) else [item] for item in mapping]
    for device in [device for mapped in devices for device in mapped]:
        if isinstance(device, bool) or not isinstance(device, int):
            raise TypeError(f"device_mapping must contain device numbers, got {device!r}")
    for index, (functions, mapped) in enumerate(zip(branches, devices, strict=True)):
        if len(functions) != len(mapped):
            raise ValueError(
                f"device_mapping has {len(mapped)} devices for the {len(functions)} concurrent "
                f"stages of stage {index}; list one device per stage"
            )
        if len({*mapped}) < len(mapped):
            raise ValueError(f"the concurrent stages of stage {index} need different devices")
    used = {device for mapped in devices for device in mapped}
    if used != {*range(len(used))}:
        raise ValueError(f"device_mapping must use the devices 0 to n − 1, got {sorted(used)}")
    return devices


def _check_devices(
    devices: Sequence[Sequence[int]], options: PipelineOptions, schedule: Schedule
) -> None:
    flat = [device for mapped in devices for device in mapped]
    shared = format_shared_devices(flat)
    if options.trains and shared and not schedule.shares_devices:
        raise NotImplementedError(
            f"{schedule.name} trains one stage per device, but device_mapping gives device "
            f"{shared} more than one; use schedule='grouped' or 'sequential'"
        )
