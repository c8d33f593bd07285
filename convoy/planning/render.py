"""Render a plan as JSON with a stable schema, or as text: a summary, tables, the learning-rate
curve and the timetable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from math import ceil
from typing import Any

from convoy.config.option import to_cli_words
from convoy.config.resolve import (
    InactiveOption,
    UnavailableValue,
    inactive_options,
    unavailable_values,
)
from convoy.config.schema import Setting, option_table
from convoy.models.layers import LayerPlan
from convoy.planning.loop import LoopPlan, LossScalePlan, RateTable, rate_table, sample_rate_changes
from convoy.planning.plan import PHASE_NAMES, RunPlan, plan_phases
from convoy.planning.stages import StagePlan
from convoy.planning.timetable import draw_timetable, make_timetable
from convoy.text import format_si, pluralize

_MAX_EPOCHS_LISTED = 1000  # a run can have millions
_MAX_CHANGES_LISTED = 200
_LABEL_WIDTH = 15
_MAX_ITEMS = 6  # list items shown per line of --explain


def plan_as_json(plan: RunPlan, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The output of `convoy plan --json`."""
    phases = [*map(_phase_as_json, PHASE_NAMES, plan_phases(plan))]
    first = phases[0]
    return {
        "model": plan.config.network.model,
        "data": plan.config.data.data,
        "layout": plan.layout,
        "network": first["network"],
        "batch": first["batch"],
        "topology": asdict(plan.topology) | {"processes": plan.topology.processes},
        "stages": [_stage_as_json(plan, stage) for stage in plan.stages],
        "splits": {"layers": list(plan.stage_starts), "balanced": plan.is_balanced},
        "recompute": {
            "enabled": plan.recompute.enabled,
            "kept": list(plan.recompute.checkpoints),
            "folded": [stage.names[0] for stage in plan.folded_stages],
        },
        "schedule": _schedule_as_json(plan),
        "memory": first["memory"],
        "learning_rate": first["learning_rate"],
        "updates": {
            name: count for name, count in first["updates"].items() if name != "epochs_before"
        },
        "phases": phases,
        "options": {name: asdict(setting) for name, setting in settings.items()},
        "without_effect": [
            {"option": option.option, "reason": option.reason}
            for option in inactive_options(plan.config, settings)
        ],
        "unavailable": [
            {"option": item.option, "value": item.value, "source": item.source, "reason": str(item)}
            for item in unavailable_values(settings)
        ],
    }


def _phase_as_json(name: str, plan: RunPlan) -> dict[str, Any]:
    """The part of a plan that differs between phases; most runs have one phase."""
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
        "memory": [asdict(stage) | {"total": stage.total} for stage in plan.memory],
        "learning_rate": _learning_rate_as_json(loop),
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


def _stage_as_json(plan: RunPlan, stage: StagePlan) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "device": plan.device_of(stage.stage),
        "first": stage.names[0],
        "last": stage.names[-1],
        "layers": list(stage.names),
        "parameters": sum(cost.parameters for cost in plan.layer_costs(stage)),
        "macs": sum(cost.macs for cost in plan.layer_costs(stage)),
    }


def _schedule_as_json(plan: RunPlan) -> dict[str, Any]:
    stages, micro_batches = len(plan.stages), plan.batch.gradient_accumulation
    schedule = plan.schedule
    return {
        "name": schedule.name,
        "unit": schedule.column_unit,
        "length": schedule.num_columns(stages, micro_batches),
        "ramp_share": schedule.bubble_fraction(stages, micro_batches),
        "stash": [schedule.stash(stage, stages) for stage in range(stages)],
        "actions": [" ".join(map(str, row)) for row in schedule.orders(stages, micro_batches)],
    }


def _learning_rate_as_json(loop: LoopPlan) -> dict[str, Any]:
    rates = loop.learning_rate
    starts = range(0, loop.updates, loop.updates_per_epoch)[:_MAX_EPOCHS_LISTED]
    return {
        "schedule": rates.config.lr_schedule,
        "base": rates.initial_lr,
        "first": rates.rate(0),
        "highest": rates.max_lr,
        "last": rates.rate(loop.updates - 1),
        "at_epochs": [rates.rate(update) for update in starts],
        "changes": [asdict(change) for change in sample_rate_changes(loop, _MAX_CHANGES_LISTED)],
    }


def phases_as_text(plan: RunPlan, width: int) -> list[str]:
    """The text output of `convoy plan`."""
    lines, *later = [plan_as_text(phase, width) for phase in plan_phases(plan)]
    for phase in later:
        lines += ["", "then fine-tuning, starting from the averaged weights", *phase]
    return lines


def plan_as_text(plan: RunPlan, width: int) -> list[str]:
    """One phase: summary, tables, learning-rate curve and timetable."""
    tables = [
        _stage_table(plan),
        _memory_table(plan),
        rate_as_text(plan.loop, width),
        _schedule_lines(plan, width),
    ]
    blocks = [["", *lines] for table in tables if (lines := list(table))]
    return [_network_line(plan), *_summary_lines(plan), *_parallelism_lines(plan), *chain(*blocks)]


def inactive_as_text(options: Sequence[InactiveOption]) -> list[str]:
    """The options that have no effect, each with the reason; empty if there are none."""
    return _text_block("no effect", [f"{option.flag} {option.condition}" for option in options])


def unavailable_as_text(values: Sequence[UnavailableValue]) -> list[str]:
    """The values that a run would reject, each with a fix; empty if there are none."""
    return _text_block("not available", list(map(str, values)))


def _labeled(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{text}"


def _text_block(title: str, lines: Sequence[str]) -> list[str]:
    labels = [title, *[""] * len(lines)]
    rows = [_labeled(label, line) for label, line in zip(labels, lines, strict=False)]
    return ["", *rows] if rows else []


def sources_as_text(settings: Mapping[str, Setting]) -> list[str]:
    """Every option with its value and source; those that are not defaults come first."""
    rows = sorted(settings.items(), key=lambda row: row[1].source == "default")
    return [_setting_line(name, setting) for name, setting in rows]


def _setting_line(name: str, setting: Setting) -> str:
    words = ["–"] if setting.value in (None, ()) else to_cli_words(setting.value)
    if len(words) > _MAX_ITEMS:
        words = [*words[:_MAX_ITEMS], f"… {len(words)} in total"]
    return f"{option_table()[name].shown_flag:<31} {' '.join(words):<16} {setting.source}"


def _network_line(plan: RunPlan) -> str:
    network, side = plan.network, plan.network.image_size
    full = plan.validation_network.image_size
    validation = f", validation on {full} × {full}" if full != side else ""
    return _labeled(
        "network",
        f"{plan.config.network.model}, {network.parameters:,} parameters, "
        f"{format_si(network.macs)} multiply-adds per {side} × {side} image{validation}",
    )


def _summary_lines(plan: RunPlan) -> Iterator[str]:
    config, batch, topology, loop = plan.config, plan.batch, plan.topology, plan.loop
    rates, classes = loop.learning_rate, plan.network.classes
    yield _labeled("data", f"{config.data.data}, {loop.samples:,} samples, {classes} classes")
    yield _labeled(
        "batch",
        f"micro-batch size {batch.micro_batch_size} × "
        f"gradient accumulation {batch.gradient_accumulation} × "
        f"{pluralize(batch.replicas, 'replica')} = "
        f"{pluralize(batch.samples_per_update, 'sample')} per update",
    )
    yield _labeled(
        "length",
        f"{loop.epochs:g} epoch{'s' * (loop.epochs != 1)} × "
        f"{pluralize(loop.updates_per_epoch, 'update')} = {pluralize(loop.updates, 'update')}, "
        f"{loop.updates * loop.samples_per_update:,} images"
        f"{f', after {loop.epochs_before:g} epochs' if loop.epochs_before else ''}",
    )
    yield _labeled("precision", _precision_text(plan))
    yield _labeled(
        "learning rate",
        f"{rates.config.lr_schedule}, starts at {rates.rate(0):.4g}, "
        f"peak {rates.max_lr:.4g}, ends at {rates.rate(loop.updates - 1):.4g}",
    )
    yield from loss_scale_as_text(loop.loss_scale)
    yield _labeled(
        "parallelism",
        f"{pluralize(topology.hosts, 'host')}, {pluralize(topology.instances, 'instance')}, "
        f"{plan.layout} = {pluralize(topology.processes, 'process')}",
    )


def _precision_text(plan: RunPlan) -> str:
    config, precision = plan.config, plan.config.precision
    text = precision.precision
    if precision.precision != "32.32":
        text += f" in {precision.half_type}"
        text += ", stochastic rounding" * precision.enable_stochastic_rounding
    text += f", optimizer {config.optimizer.optimizer}"
    return text + (f", EMA decay {ema:g}" if (ema := config.average.ema_decay) else "")


def _parallelism_lines(plan: RunPlan) -> Iterator[str]:
    """Stages, frozen layers, recomputation and replicas, where they apply."""
    if plan.stage_starts or plan.is_balanced:
        origin = "balanced by cost" if plan.is_balanced else "set by --pipeline-splits"
        yield _labeled("stages", f"{origin}: {' '.join(plan.stage_starts)}")
    if plan.num_frozen:
        yield _labeled("frozen", frozen_as_text(plan.network.layers, plan.num_frozen))
    if plan.config.optimizer.variable_filter:
        trained, parameters = sum(plan.trained_parameters), plan.network.parameters
        yield _labeled("trained", f"{trained:,} of {parameters:,} parameters (--variable-filter)")
    yield _labeled("recompute", _recompute_text(plan))
    if plan.topology.replicas > 1:
        span = plan.config.replica.bn_span
        norms = (
            f"synchronized over {pluralize(span, 'replica')}"
            if span > 1
            else "statistics per replica"
        )
        has_batch_norm = plan.config.network.norm_type == "batch"
        yield _labeled(
            "replicas",
            f"{plan.config.replica.reduction} gradient reduction"
            f"{f', batch norm {norms}' * has_batch_norm}",
        )


def _recompute_text(plan: RunPlan) -> str:
    """What is stored. Boundaries of folded stages are recompute checkpoints, if it is on."""
    checkpoints = " ".join(plan.recompute.checkpoints)
    if plan.folded_stages:
        device = plan.process_devices[0]
        folded = f"{len(plan.folded_stages)} stages run as one process on device {device}"
        if not plan.recompute.enabled:
            return f"off: {folded}, so their boundaries have no effect"
        return f"on: {folded}; checkpoints are the outputs of {checkpoints}"
    if not plan.recompute.enabled:
        return "off: all activations that the backward pass needs are stored"
    return f"on: a stage stores its input{f' and the outputs of {checkpoints}' * bool(checkpoints)}"


def _stage_table(plan: RunPlan) -> Iterator[str]:
    yield "stage  device  first layer          parameters       cost"
    work = max(1, plan.network.work)
    for stage in plan.stages:
        costs = plan.layer_costs(stage)
        share = 100 * sum(cost.work for cost in costs) / work
        yield (
            f"{stage.stage:>5}  {plan.device_of(stage.stage):>6}  {stage.names[0]:<20} "
            f"{sum(cost.parameters for cost in costs):>10,} {share:>8.1f} %"
        )


def _memory_table(plan: RunPlan) -> Iterator[str]:
    yield "memory   weights  gradients  optimizer  activations      total  stash"
    for stage, memory in enumerate(plan.memory):
        sizes = (
            memory.weights,
            memory.gradients,
            memory.optimizer_state,
            memory.activations,
            memory.total,
        )
        widths = (8, 10, 10, 12, 10)
        columns = " ".join(
            f"{format_si(size) + 'B':>{width}}" for size, width in zip(sizes, widths, strict=True)
        )
        stash = f"{format_si(memory.stash)}B for {pluralize(memory.stash_sets, 'micro-batch')}"
        yield f"stage {stage:<2}{columns}  {stash}"
    config, replicas = plan.config.memory, plan.topology.replicas
    if config.enable_optimizer_rts and replicas > 1:
        yield f"         optimizer state sharded over {replicas} replicas"
    if config.offload_optimizer:
        most = max(memory.offloaded for memory in plan.memory)
        yield f"         optimizer state offloaded between updates: up to {format_si(most)}B"


def _schedule_lines(plan: RunPlan, width: int) -> Iterator[str]:
    stages, micro_batches = len(plan.stages), plan.batch.gradient_accumulation
    idle = plan.schedule.bubble_fraction(stages, micro_batches)
    columns = plan.schedule.num_columns(stages, micro_batches)
    yield (
        f"{plan.schedule.name}, {pluralize(micro_batches, 'micro-batch')} through "
        f"{pluralize(stages, 'stage')}: "
        f"{pluralize(columns, plan.schedule.column_unit)}, "
        f"bubble {100 * idle:.1f} % if all stages take equally long"
    )
    yield from draw_timetable(make_timetable(plan.schedule, stages, micro_batches), width)


_BAR_GLYPHS = " ▁▂▃▄▅▆▇█"
_CURVE_HEIGHT = 4  # lines
_MAX_CURVE_WIDTH = 64
_MIN_CURVE_WIDTH = 8  # even if the terminal is narrower


def rate_as_text(loop: LoopPlan, width: int) -> list[str]:
    """The curve and the table of changes; empty if the learning rate is constant."""
    changes = rate_table(loop)
    if len(changes.rows) == 1:
        return []
    return [*_rate_curve(loop, width), "", *_rate_table(changes)]


def _rate_curve(loop: LoopPlan, width: int) -> Iterator[str]:
    """Draw the learning rate over the run.

    0.1 │███▇▇▆▆▅▄▃▂▁
        │████████████▇▆▅▄▃▂▁
      0 └────────────────────
        epoch 0            5
    """
    rates, last = loop.learning_rate, loop.updates - 1
    max_lr = rates.max_lr
    labels = [f"{max_lr:.4g}", *[""] * (_CURVE_HEIGHT - 1), "0"]
    side = max(map(len, labels))
    columns = max(_MIN_CURVE_WIDTH, min(_MAX_CURVE_WIDTH, width - side - 2))
    sampled = [rates.rate(last * column // (columns - 1)) for column in range(columns)]
    eighths = [ceil(8 * _CURVE_HEIGHT * rate / max_lr) for rate in sampled]
    for line, label in enumerate(labels[:-1]):
        below = 8 * (_CURVE_HEIGHT - 1 - line)
        bars = "".join(_BAR_GLYPHS[min(max(level - below, 0), 8)] for level in eighths)
        yield f"{label:>{side}} │{bars}".rstrip()
    yield f"{labels[-1]:>{side}} └{'─' * columns}"
    start, end = (f"{loop.epoch_after(update):.6g}" for update in (0, loop.updates))
    yield f"{'':{side}}  {f'epoch {start}':<{columns - len(end)}}{end}"


def _rate_table(changes: RateTable) -> Iterator[str]:
    rows = [(f"{row.update}", f"{row.epoch:.6g}", f"{row.rate:.4g}") for row in changes.rows]
    if changes.num_omitted:
        rows.insert(-1, ("…", f"{changes.num_omitted} more", "…"))
    rows.insert(0, ("update", "epoch", "lr"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))


def frozen_as_text(layers: Sequence[LayerPlan], frozen: int) -> str:
    """How much is frozen, and where training starts."""
    frozen_parameters = sum(layer.operation.parameters for layer in layers[:frozen])
    parameters = sum(layer.operation.parameters for layer in layers)
    return (
        f"{pluralize(frozen, 'layer')} ({frozen_parameters:,} of {parameters:,} parameters), "
        f"training starts at {layers[frozen].name}"
    )


def loss_scale_as_text(plan: LossScalePlan) -> Iterator[str]:
    """The loss-scale line of a plan; no line if the loss is not scaled."""
    if plan.automatic:
        yield _labeled("loss scale", f"starts at {plan.final:,.10g}, then automatic")
    elif plan.is_constant and plan.final != 1:
        yield _labeled("loss scale", f"{plan.final:,.10g}")
    elif not plan.is_constant:
        steps = []
        for level in plan.levels:
            epochs, remainder = divmod(level.start, plan.updates_per_epoch)
            after = (
                pluralize(level.start, "update")
                if remainder
                else f"{epochs} epoch{'s' * (epochs > 1)}"
            )
            when = f" after {after}" if level.start else ""
            steps.append(f"{level.scale:,.10g}{when}")
        yield _labeled("loss scale", f"starts at {', '.join(steps)}")
