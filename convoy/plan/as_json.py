"""A plan as plain JSON values, for programs. The shape is stable."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from convoy.config.settings import Setting
from convoy.config.support import inactive_options, unavailable
from convoy.plan.loop import rate_changes
from convoy.plan.phases import NAMES, plan_phases
from convoy.plan.plan import RunPlan

_EPOCHS_LISTED = 1000  # a run may have millions
_CHANGES_LISTED = 200


def plan_as_json(plan: RunPlan, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Everything `convoy plan` knows."""
    return {
        "model": plan.config.network.model,
        "data": plan.config.data.data,
        "layout": plan.layout,
        "network": _network(plan),
        "batch": _batch(plan),
        "topology": asdict(plan.topology) | {"processes": plan.topology.processes},
        "stages": _stages(plan),
        "borders": {"layers": list(plan.borders), "balanced": plan.balanced},
        "recompute": _recompute(plan),
        "schedule": _schedule(plan),
        "memory": _memory(plan),
        "learning_rate": _learning_rate(plan),
        "updates": _updates(plan),
        "phases": [_phase(name, one) for name, one in zip(NAMES, plan_phases(plan), strict=False)],
        "options": {name: asdict(setting) for name, setting in settings.items()},
        "without_effect": [
            {"option": one.option, "reason": one.reason}
            for one in inactive_options(plan.config, settings)
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


def _phase(name: str, plan: RunPlan) -> dict[str, Any]:
    """What one phase of a run has of its own; most runs have one."""
    return {
        "name": name,
        "network": _network(plan),
        "batch": _batch(plan),
        "memory": _memory(plan),
        "learning_rate": _learning_rate(plan),
        "updates": _updates(plan) | {"epochs_before": plan.loop.epochs_before},
        "frozen": {
            "layers": plan.num_frozen,
            "parameters": sum(layer.operation.parameters for layer in plan.frozen_layers),
            "first_trained": plan.network.layers[plan.num_frozen].name,
        },
    }


def _batch(plan: RunPlan) -> dict[str, Any]:
    return asdict(plan.batch) | {"samples_per_update": plan.batch.samples_per_update}


def _memory(plan: RunPlan) -> list[dict[str, Any]]:
    return [asdict(one) | {"total": one.total} for one in plan.memory]


def _network(plan: RunPlan) -> dict[str, Any]:
    network = plan.network
    return {
        "image_size": network.image_size,
        "classes": network.classes,
        "parameters": network.parameters,
        "macs": network.macs,
    }


def _stages(plan: RunPlan) -> list[dict[str, Any]]:
    return [
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
    ]


def _recompute(plan: RunPlan) -> dict[str, Any]:
    folded = [stage.names[0] for stage in plan.folded_stages]
    return {"enabled": plan.recompute.enabled, "kept": list(plan.recompute.kept), "folded": folded}


def _schedule(plan: RunPlan) -> dict[str, Any]:
    stages, micro_batches = len(plan.stages), plan.batch.gradient_accumulation
    schedule = plan.schedule
    return {
        "name": schedule.name,
        "unit": schedule.unit,
        "length": schedule.length(stages, micro_batches),
        "ramp_share": schedule.ramp_share(stages, micro_batches),
        "stash": [schedule.stash(stage, stages) for stage in range(stages)],
        "actions": [" ".join(map(str, row)) for row in schedule.orders(stages, micro_batches)],
    }


def _learning_rate(plan: RunPlan) -> dict[str, Any]:
    rates = plan.loop.learning_rate
    starts = range(0, plan.loop.updates, plan.loop.updates_per_epoch)[:_EPOCHS_LISTED]
    return {
        "schedule": rates.config.lr_schedule,
        "base": rates.initial,
        "first": rates.rate(0),
        "highest": rates.highest,
        "last": rates.rate(plan.loop.updates - 1),
        "at_epochs": [rates.rate(update) for update in starts],
        "changes": [asdict(one) for one in rate_changes(plan.loop, _CHANGES_LISTED)],
    }


def _updates(plan: RunPlan) -> dict[str, Any]:
    loop = plan.loop
    return {
        "samples": loop.samples,
        "per_epoch": loop.updates_per_epoch,
        "total": loop.updates,
        "epochs": loop.epochs,
        "images": loop.updates * loop.samples_per_update,
    }
