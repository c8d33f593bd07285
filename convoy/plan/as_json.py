"""A plan as plain JSON values, for programs. The shape is stable.

Of an outline, whatever needs the layers is null.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from convoy.config.availability import unavailable
from convoy.config.effects import without_effect
from convoy.config.layers import Setting
from convoy.plan.line import asked_starts
from convoy.plan.network import classes_of, image_size
from convoy.plan.plan import OutlinePlan, RunPlan

_EPOCHS_LISTED = 1000  # a run may have millions


def plan_as_json(plan: RunPlan | OutlinePlan, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Everything `convoy plan` knows."""
    layered = _with_layers(plan) if isinstance(plan, RunPlan) else _without_layers(plan)
    return {
        "model": plan.config.network.model,
        "data": plan.config.data.data,
        "layout": plan.layout,
        "network": _images(plan) | layered["network"],
        "batch": asdict(plan.batch) | {"samples_per_update": plan.batch.samples_per_update},
        "topology": asdict(plan.topology) | {"processes": plan.topology.processes},
        "stages": layered["stages"],
        "borders": {"layers": list(plan.borders), "balanced": plan.balanced},
        "recompute": {"enabled": plan.recomputes} | layered["recompute"],
        "schedule": _schedule(plan),
        "memory": layered["memory"],
        "learning_rate": _learning_rate(plan),
        "updates": _updates(plan),
        "options": {name: asdict(setting) for name, setting in settings.items()},
        "without_effect": [
            {"option": one.option, "reason": one.reason}
            for one in without_effect(plan.config, settings)
        ],
        "unavailable": [
            {
                "option": one.option,
                "value": one.value,
                "source": one.source,
                "reason": one.reason,
            }
            for one in unavailable(settings)
        ],
    }


def _images(plan: OutlinePlan) -> dict[str, Any]:
    return {"image_size": image_size(plan.config), "classes": classes_of(plan.config)}


def _with_layers(plan: RunPlan) -> dict[str, Any]:
    folded = [stage.names[0] for stage in plan.folded]
    return {
        "network": {"parameters": plan.network.parameters, "macs": plan.network.macs},
        "stages": [
            {
                "stage": stage.stage,
                "device": plan.device_of(stage.stage),
                "first": stage.names[0],
                "last": stage.names[-1],
                "layers": list(stage.names),
                "parameters": sum(cost.parameters for cost in plan.layer_costs(stage)),
                "macs": sum(cost.macs for cost in plan.layer_costs(stage)),
            }
            for stage in plan.stages
        ],
        "recompute": {"kept": list(plan.recompute.kept), "folded": folded},
        "memory": [asdict(one) | {"total": one.total} for one in plan.memory],
    }


def _without_layers(plan: OutlinePlan) -> dict[str, Any]:
    """The same keys. A stage begins where its split says; the first one has none."""
    starts = asked_starts(plan.config.pipeline)
    unknown = dict.fromkeys(("last", "layers", "parameters", "macs"))
    return {
        "network": {"parameters": None, "macs": None},
        "stages": [
            {"stage": stage, "device": plan.device_of(stage), "first": first, **unknown}
            for stage, first in enumerate(starts[: plan.line])
        ],
        "recompute": {"kept": None, "folded": list(starts) if plan.folds else []},
        "memory": None,
    }


def _schedule(plan: OutlinePlan) -> dict[str, Any]:
    stages, micro_batches = plan.line, plan.batch.gradient_accumulation
    schedule = plan.schedule
    return {
        "name": schedule.name,
        "unit": schedule.unit,
        "length": schedule.length(stages, micro_batches),
        "ramp_share": schedule.ramp_share(stages, micro_batches),
        "stash": [schedule.stash(stage, stages) for stage in range(stages)],
        "actions": [" ".join(map(str, row)) for row in schedule.orders(stages, micro_batches)],
    }


def _learning_rate(plan: OutlinePlan) -> dict[str, Any]:
    rates = plan.loop.learning_rate
    starts = range(0, plan.loop.updates, plan.loop.updates_per_epoch)[:_EPOCHS_LISTED]
    return {
        "schedule": rates.config.lr_schedule,
        "base": rates.initial,
        "first": rates.rate(0),
        "highest": rates.highest,
        "last": rates.rate(plan.loop.updates - 1),
        "at_epochs": [rates.rate(update) for update in starts],
    }


def _updates(plan: OutlinePlan) -> dict[str, Any]:
    loop = plan.loop
    return {
        "samples": loop.samples,
        "per_epoch": loop.updates_per_epoch,
        "total": loop.updates,
        "epochs": loop.epochs,
        "images": loop.updates * loop.samples_per_update,
    }
