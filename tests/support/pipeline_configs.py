"""Shipped configurations with several stages, reduced to train on two cores.

Layers, pipeline splits, schedule and recomputation are unchanged. Images are the smallest with
more than one pixel in the last feature map, and a micro-batch has two of them.
"""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from convoy.config.named_configs import read_named_config, shipped_config_names
from convoy.config.resolve import ResolvedConfig, resolve
from convoy.config.schema import RequestedOptions, RunConfig, settings_from
from convoy.config.sections.parallel import PipelineConfig
from convoy.errors import ConfigError
from convoy.models.layers import LayerPlan
from convoy.planning.memory import RecomputePlan
from convoy.planning.plan import RunPlan, plan_run
from convoy.planning.schedules import Schedule, make_schedule
from convoy.run.folder import RunRequest
from convoy.run.start import run_in_workers

Values = dict[str, Any]

UPDATES = 2
SAMPLES = 2  # per micro-batch
SMALL: Values = {
    "data": "generated",
    "num_classes": 10,
    "image_size": 33,
    "micro_batch_size": SAMPLES,
    "replicas": 1,
    "updates": UPDATES,
    "ckpts_per_epoch": UPDATES,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 0.0,  # so the first velocity is the gradient
    "threads": 1,
    "dataloader_worker": 0,
    "progress": "none",
    "validation_mode": "none",
    "logs_per_epoch": 0,
}
# Options of a run in one process.
SINGLE_PROCESS: Values = {
    **asdict(PipelineConfig()),
    "enable_recompute": False,
    "recompute_checkpoints": (),
}

# Further pipeline splits in the documents of the reference applications.
DOCUMENTED: dict[str, tuple[str, Values]] = {
    "B0 over 4": (
        "efficientnet_b4_g1_16ipus",
        {"model": "efficientnet-b0", "pipeline_splits": ("block2b", "block4a", "block6a")},
    ),
    "B0 over 4, modified": (
        "efficientnet_b4_g16_16ipus",
        {
            "model": "efficientnet-b0",
            "pipeline_splits": ("block2a/SE", "block4a", "block5c"),
            "shards": 4,
        },
    ),
    "B0 over 2": (
        "efficientnet_b4_g16_16ipus",
        {"model": "efficientnet-b0", "pipeline_splits": ("block3b",)},
    ),
    "ResNet-50 over 2": (
        "mk1_resnet50_16ipus",
        {"pipeline_splits": ("b3/0/relu",), "shards": 2},
    ),
    "ResNet-50 over 2, later": (
        "mk1_resnet50_16ipus",
        {"pipeline_splits": ("b3/1/relu",), "shards": 2},
    ),
}


@dataclass(frozen=True)
class Cut:
    """The parts of a pipeline. Configurations with equal cuts train identically."""

    layers: tuple[LayerPlan, ...]
    starts: tuple[int, ...]
    schedule: str
    recompute: RecomputePlan


def staged_names() -> list[str]:
    """Shipped configurations with more than one stage, possibly on one device."""
    return [name for name in shipped_config_names() if as_shipped(name).pipeline.stages > 1]


@cache
def as_shipped(name: str) -> RunConfig:
    settings, problems = read_named_config(name, None)
    return resolve(
        RequestedOptions(named_config=settings, problems=problems, environment={})
    ).config


def reduced(name: str) -> ResolvedConfig:
    """A shipped or documented configuration with the smallest images and batches."""
    base, changes = DOCUMENTED.get(name, (name, {}))
    full = as_shipped(base)
    local = {
        **asdict(full.network),
        **asdict(full.family),
        **asdict(full.pipeline),
        "enable_recompute": full.memory.enable_recompute,
        "recompute_checkpoints": full.memory.recompute_checkpoints,
    }
    values = {**local, **changes, **SMALL}
    config = PipelineConfig(**{row.name: values[row.name] for row in fields(PipelineConfig)})
    schedule = make_schedule(config.pipeline_schedule, config.stages_per_device)
    return _resolved(values | _batch(_min_micro_batches(schedule, config.planned_stages)))


def _batch(micro_batches: int) -> Values:
    return {
        "gradient_accumulation": micro_batches,
        "samples": SAMPLES * micro_batches * UPDATES,
    }


def _min_micro_batches(schedule: Schedule, stages: int) -> int:
    """The smallest valid number of micro-batches of an update."""
    for count in range(2, 100):
        try:
            schedule.check_micro_batches(stages, count)
        except ConfigError:
            continue
        return count
    raise AssertionError(f"{schedule.name} accepts no number of micro-batches for {stages} stages")


def _resolved(values: Values) -> ResolvedConfig:
    return resolve(
        RequestedOptions(
            named_config=settings_from("a reduced configuration", values), environment={}
        )
    )


def in_one_process(resolved: ResolvedConfig) -> ResolvedConfig:
    """The same training in one process, without recomputation."""
    values = {name: item.value for name, item in resolved.settings.items()}
    return _resolved({**values, **SINGLE_PROCESS})


def cut_of(plan: RunPlan) -> Cut:
    starts = tuple(stage.first for stage in plan.stages)
    return Cut(plan.network.layers, starts, plan.schedule.name, plan.recompute)


@cache
def cuts() -> dict[Cut, list[str]]:
    """Every different cut, and the configurations that have it."""
    found = defaultdict(list)
    for name in (*staged_names(), *DOCUMENTED):
        found[cut_of(plan_run(reduced(name).config))].append(name)
    return dict(found)


def train(resolved: ResolvedConfig, folder: Path) -> Values:
    """The digests of all checkpoints of a run in worker processes.

    The velocity after the first update is the gradient, so digests compare gradients too.
    """
    settings = {name: item.value for name, item in resolved.settings.items()}
    with_output = _resolved({**settings, "checkpoint_output_path": str(folder)})
    request = RunRequest(with_output, quiet=True)
    assert run_in_workers(request, plan_run(with_output.config)).code == 0
    return {
        path.parent.name: _digests(json.loads(path.read_text())["files"])
        for path in sorted(folder.glob("checkpoints/*/MANIFEST.json"))
    }


def _digests(files: Values) -> Values:
    return {name: item for name, item in files.items() if name.endswith(".safetensors")}
