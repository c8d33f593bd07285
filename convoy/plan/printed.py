"""A plan as JSON values for programs, in a stable shape; and for people: a few lines of figures,
tables, drawings of the rate and the schedule.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from math import ceil
from typing import Any

from convoy.config.option import as_words
from convoy.config.settings import Setting
from convoy.config.support import InactiveOption, Unavailable, inactive_options, unavailable
from convoy.models.layers import LayerPlan
from convoy.plan.loop import (
    LoopPlan,
    LossScalePlan,
    ShownChanges,
    rate_changes,
    shown_changes,
)
from convoy.plan.plan import NAMES, RunPlan, plan_phases
from convoy.plan.stages import StagePlan
from convoy.plan.timetable import draw, place
from convoy.text import counted, short

_EPOCHS_LISTED = 1000  # a run may have millions
_CHANGES_LISTED = 200
_SHOWN = 6  # items of a list, where it is one of many lines


def plan_as_json(plan: RunPlan, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Everything `convoy plan` knows."""
    phases = [_phase(name, one) for name, one in zip(NAMES, plan_phases(plan), strict=False)]
    first = phases[0]
    return {
        "model": plan.config.network.model,
        "data": plan.config.data.data,
        "layout": plan.layout,
        "network": first["network"],
        "batch": first["batch"],
        "topology": asdict(plan.topology) | {"processes": plan.topology.processes},
        "stages": [_stage(plan, stage) for stage in plan.stages],
        "borders": {"layers": list(plan.borders), "balanced": plan.balanced},
        "recompute": {
            "enabled": plan.recompute.enabled,
            "kept": list(plan.recompute.kept),
            "folded": [stage.names[0] for stage in plan.folded_stages],
        },
        "schedule": _schedule_values(plan),
        "memory": first["memory"],
        "learning_rate": first["learning_rate"],
        "updates": {
            name: count for name, count in first["updates"].items() if name != "epochs_before"
        },
        "phases": phases,
        "options": {name: asdict(setting) for name, setting in settings.items()},
        "without_effect": [
            {"option": one.option, "reason": one.reason}
            for one in inactive_options(plan.config, settings)
        ],
        "unavailable": [
            {"option": one.option, "value": one.value, "source": one.source, "reason": one.reason}
            for one in unavailable(settings)
        ],
    }


def _phase(name: str, plan: RunPlan) -> dict[str, Any]:
    """What one phase of a run has of its own; most runs have one."""
    network, loop = plan.network, plan.loop
    return {
        "name": name,
        "network": {
            "image_size": network.image_size,
            "classes": network.classes,
            "parameters": network.parameters,
            "macs": network.macs,
        },
        "batch": asdict(plan.batch) | {"samples_per_update": plan.batch.samples_per_update},
        "memory": [asdict(one) | {"total": one.total} for one in plan.memory],
        "learning_rate": _learning_rate(loop),
        "updates": {
            "samples": loop.samples,
            "per_epoch": loop.updates_per_epoch,
            "total": loop.updates,
            "epochs": loop.epochs,
            "images": loop.updates * loop.samples_per_update,
            "epochs_before": loop.epochs_before,
        },
        "frozen": {
            "layers": plan.num_frozen,
            "parameters": sum(layer.operation.parameters for layer in plan.frozen_layers),
            "first_trained": network.layers[plan.num_frozen].name,
        },
    }


def _stage(plan: RunPlan, stage: StagePlan) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "device": plan.device_of(stage.stage),
        "first": stage.names[0],
        "last": stage.names[-1],
        "layers": list(stage.names),
        "parameters": sum(cost.parameters for cost in plan.layer_costs(stage)),
        "macs": sum(cost.macs for cost in plan.layer_costs(stage)),
    }


def _schedule_values(plan: RunPlan) -> dict[str, Any]:
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


def _learning_rate(loop: LoopPlan) -> dict[str, Any]:
    rates = loop.learning_rate
    starts = range(0, loop.updates, loop.updates_per_epoch)[:_EPOCHS_LISTED]
    return {
        "schedule": rates.config.lr_schedule,
        "base": rates.initial,
        "first": rates.rate(0),
        "highest": rates.highest,
        "last": rates.rate(loop.updates - 1),
        "at_epochs": [rates.rate(update) for update in starts],
        "changes": [asdict(one) for one in rate_changes(loop, _CHANGES_LISTED)],
    }


def phases_as_text(plan: RunPlan, width: int) -> list[str]:
    """What `convoy plan` prints."""
    lines, *more = [plan_as_text(one, width) for one in plan_phases(plan)]
    for second in more:
        lines += ["", "then fine-tuning, from the average of the weights", *second]
    return lines


def plan_as_text(plan: RunPlan, width: int) -> list[str]:
    """One phase: figures, tables and drawings."""
    tables = [
        _stage_table(plan),
        _memory_table(plan),
        rate_as_text(plan.loop, width),
        _schedule(plan, width),
    ]
    blocks = [["", *lines] for table in tables if (lines := list(table))]
    return [_network(plan), *_figures(plan), *_shape(plan), *chain(*blocks)]


def effectless_as_text(options: Sequence[InactiveOption]) -> list[str]:
    """The options that were given in vain, each with the reason; nothing if there are none."""
    return _block("no effect", [f"{one.flag} {one.why}" for one in options])


def unavailable_as_text(values: Sequence[Unavailable]) -> list[str]:
    """The values that a run would refuse, each with the way out; nothing if there are none."""
    return _block("not yet", [one.reason for one in values])


def _block(title: str, lines: Sequence[str]) -> list[str]:
    labels = [title, *[""] * len(lines)]
    rows = [f"{label:<9} {line}" for label, line in zip(labels, lines, strict=False)]
    return ["", *rows] if rows else []


def sources_as_text(settings: Mapping[str, Setting]) -> list[str]:
    """Every value and who set it, those somebody chose first."""
    chosen = {name: one for name, one in settings.items() if one.source != "default"}
    rest = {name: one for name, one in settings.items() if name not in chosen}
    return [_source(name, one) for group in (chosen, rest) for name, one in group.items()]


def _source(name: str, setting: Setting) -> str:
    words = ["–"] if setting.value in (None, ()) else as_words(setting.value)
    value = " ".join(words if len(words) <= _SHOWN else [*words[:_SHOWN], f"… {len(words)} in all"])
    return f"{'--' + name.replace('_', '-'):<31} {value:<16} {setting.source}"


def _network(plan: RunPlan) -> str:
    network, side = plan.network, plan.network.image_size
    whole = plan.validation_network.image_size
    return (
        f"network   {plan.config.network.model}, {network.parameters:,} parameters, "
        f"{short(network.macs)} multiply-adds per {side} × {side} image"
        f"{f', validation takes {whole} × {whole}' if whole != side else ''}"
    )


def _figures(plan: RunPlan) -> Iterator[str]:
    config, batch, topology, loop = plan.config, plan.batch, plan.topology, plan.loop
    rates, classes, precision = loop.learning_rate, plan.network.classes, config.precision
    yield f"data      {config.data.data}, {loop.samples:,} samples of {classes} classes"
    yield (
        f"batch     {batch.micro_batch_size} micro × {batch.gradient_accumulation} accumulated × "
        f"{counted(batch.replicas, 'replica')} = "
        f"{counted(batch.samples_per_update, 'sample')} per update"
    )
    yield (
        f"length    {loop.epochs:g} epoch{'s' * (loop.epochs != 1)} × "
        f"{counted(loop.updates_per_epoch, 'update')} = {counted(loop.updates, 'update')}, "
        f"{loop.updates * loop.samples_per_update:,} images"
        f"{f', after {loop.epochs_before:g} epochs' if loop.epochs_before else ''}"
    )
    half = "" if precision.precision == "32.32" else f" in {precision.half_type}"
    by_chance = ", rounded by chance" * (precision.enable_stochastic_rounding and half != "")
    average = f", a running average of {ema:g}" if (ema := config.average.ema_decay) else ""
    yield (
        f"numbers   {precision.precision}{half}{by_chance}; {config.optimizer.optimizer}{average}"
    )
    yield (
        f"rate      {rates.config.lr_schedule}: {rates.rate(0):.4g} at first, "
        f"{rates.highest:.4g} at most, {rates.rate(loop.updates - 1):.4g} at last"
    )
    yield from loss_scale_as_text(loop.loss_scale)
    yield (
        f"layout    {counted(topology.hosts, 'host')}, {counted(topology.instances, 'instance')}, "
        f"{plan.layout} = {counted(topology.processes, 'process')}"
    )


def _shape(plan: RunPlan) -> Iterator[str]:
    """How stages and replicas work together, where there are any."""
    if plan.borders or plan.balanced:
        how = "balanced by cost" if plan.balanced else "as given"
        yield f"stages    {how}: {' '.join(plan.borders)}"
    if plan.num_frozen:
        yield f"frozen    {frozen_as_text(plan.network.layers, plan.num_frozen)}"
    if plan.config.optimizer.variable_filter:
        trained, parameters = sum(plan.trained_parameters), plan.network.parameters
        yield f"trained   {trained:,} of {parameters:,} parameters, by --variable-filter"
    yield f"recompute {_recompute(plan)}"
    if plan.topology.replicas > 1:
        span = counted(plan.config.replica.bn_span, "replica")
        has_batch = plan.config.network.norm_type == "batch"
        yield (
            f"replicas  {plan.config.replica.reduction} sum of the gradients"
            f"{f', batch statistics over {span}' * has_batch}"
        )


def _recompute(plan: RunPlan) -> str:
    """What is kept. The borders of folded stages are recompute points, or nothing at all."""
    kept = " ".join(plan.recompute.kept)
    if plan.folded_stages:
        as_one = f"{len(plan.folded_stages)} stages run as one process on device {plan.devices[0]}"
        if not plan.recompute.enabled:
            return f"off: {as_one}, and their borders mean nothing"
        return f"on: {as_one}; recompute points are the results of {kept}"
    if not plan.recompute.enabled:
        return "off: all that the backward pass needs is kept"
    return f"on: a stage keeps what comes in{f' and the results of {kept}' if kept else ''}"


def _stage_table(plan: RunPlan) -> Iterator[str]:
    yield "stage  device  first layer          parameters       work"
    work = max(1, plan.network.macs)
    for stage in plan.stages:
        costs = plan.layer_costs(stage)
        share = 100 * sum(cost.macs for cost in costs) / work
        yield (
            f"{stage.stage:>5}  {plan.device_of(stage.stage):>6}  {stage.names[0]:<20} "
            f"{sum(cost.parameters for cost in costs):>10,} {share:>8.1f} %"
        )


def _memory_table(plan: RunPlan) -> Iterator[str]:
    yield "memory   weights  gradients  optimizer  activations      total  activations waiting"
    for stage, one in enumerate(plan.memory):
        sizes = (one.weights, one.gradients, one.optimizer_state, one.activations, one.total)
        widths = (8, 10, 10, 12, 10)
        columns = " ".join(
            f"{short(size) + 'B':>{width}}" for size, width in zip(sizes, widths, strict=True)
        )
        yield f"stage {stage:<2}{columns}  {short(one.stash)}B in {counted(one.stash_sets, 'set')}"
    wish, replicas = plan.config.memory, plan.topology.replicas
    if wish.enable_optimizer_rts and replicas > 1:
        yield f"         optimizer state divided over {replicas} replicas"
    if wish.offload_optimizer:
        most = max(one.offloaded for one in plan.memory)
        yield f"         optimizer state off the device between updates: {short(most)}B at most"


def _schedule(plan: RunPlan, width: int) -> Iterator[str]:
    stages, micro_batches = len(plan.stages), plan.batch.gradient_accumulation
    idle = plan.schedule.ramp_share(stages, micro_batches)
    yield (
        f"{plan.schedule.name}, {counted(micro_batches, 'micro-batch')} through "
        f"{counted(stages, 'stage')}: "
        f"{counted(plan.schedule.length(stages, micro_batches), plan.schedule.unit)}, "
        f"{100 * idle:.1f} % of the time idle if all stages take equally long"
    )
    yield from draw(place(plan.schedule, stages, micro_batches), width)


_BLOCKS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 4  # lines
_COLUMNS = 64  # at most
_FEWEST = 8  # however narrow the terminal


def rate_as_text(loop: LoopPlan, width: int) -> list[str]:
    """The curve and the table; nothing of a rate that never changes."""
    changes = shown_changes(loop)
    if len(changes.rows) == 1:
        return []
    return [*_curve(loop, width), "", *_table(changes)]


def _curve(loop: LoopPlan, width: int) -> Iterator[str]:
    """
    0.1 │███▇▇▆▆▅▄▃▂▁
        │████████████▇▆▅▄▃▂▁
      0 └────────────────────
        epoch 0            5
    """
    rates, last = loop.learning_rate, loop.updates - 1
    highest = rates.highest
    labels = [f"{highest:.4g}", *[""] * (_HEIGHT - 1), "0"]
    side = max(map(len, labels))
    columns = max(_FEWEST, min(_COLUMNS, width - side - 2))
    seen = [rates.rate(last * column // (columns - 1)) for column in range(columns)]
    eighths = [ceil(8 * _HEIGHT * rate / highest) for rate in seen]
    for line, label in enumerate(labels[:-1]):
        below = 8 * (_HEIGHT - 1 - line)
        bars = "".join(_BLOCKS[min(max(level - below, 0), 8)] for level in eighths)
        yield f"{label:>{side}} │{bars}".rstrip()
    yield f"{labels[-1]:>{side}} └{'─' * columns}"
    start, end = (f"{loop.epoch_after(update):.6g}" for update in (0, loop.updates))
    yield f"{'':{side}}  {f'epoch {start}':<{columns - len(end)}}{end}"


def _table(changes: ShownChanges) -> Iterator[str]:
    rows = [(f"{one.update}", f"{one.epoch:.6g}", f"{one.rate:.4g}") for one in changes.rows]
    if changes.left_out:
        rows.insert(-1, ("…", f"{changes.left_out} more", "…"))
    rows.insert(0, ("update", "epoch", "rate"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))


def frozen_as_text(layers: Sequence[LayerPlan], frozen: int) -> str:
    """How much stays, and where the training begins."""
    still = sum(layer.operation.parameters for layer in layers[:frozen])
    parameters = sum(layer.operation.parameters for layer in layers)
    return (
        f"{counted(frozen, 'layer')} with {still:,} of {parameters:,} parameters as they are, "
        f"training begins at {layers[frozen].name}"
    )


def loss_scale_as_text(plan: LossScalePlan) -> Iterator[str]:
    """Lines of a printed plan; none where the loss is taken as it is."""
    if plan.automatic:
        yield f"scale     {plan.last:,.10g} at first, then as the gradients want it"
    elif plan.is_constant:
        if plan.last != 1:
            yield f"scale     {plan.last:,.10g} times the loss"
    else:
        words = []
        for level in plan.levels:
            epochs, left = divmod(level.first, plan.updates_per_epoch)
            after = (
                counted(level.first, "update") if left else f"{epochs} epoch{'s' * (epochs > 1)}"
            )
            when = f"after {after}" if level.first else "at first"
            words.append(f"{level.scale:,.10g} {when}")
        yield f"scale     {', '.join(words)}"
