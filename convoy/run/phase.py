"""One phase of a run in one process: open data, build, load, train, finish.

Rank 0 also opens the run folder, finds the starting point and broadcasts it. From then on every
process does the same.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

from convoy.checkpoint.format import JSON
from convoy.config.resolve import ResolvedConfig, explicit_settings, inactive_options
from convoy.config.schema import RunConfig, config_digest, settings_as_yaml, training_values
from convoy.data.source import Source
from convoy.data.sources.open import fingerprint, open_source
from convoy.events import Noticed, Observers, StopRequest
from convoy.files import write_atomically
from convoy.planning.plan import num_used_samples, plan_phases, plan_run
from convoy.planning.render import frozen_as_text, plan_as_json
from convoy.report.log import Log
from convoy.report.progress import make_progress
from convoy.report.summary import FinishedRun
from convoy.run.build import build
from convoy.run.folder import RunFolder, RunRequest, claim_new_folder, open_run_folder
from convoy.run.lifecycle import Lifecycle
from convoy.run.prediction import prediction_metadata
from convoy.run.process import ProcessContext
from convoy.run.starting_point import (
    StartingPoint,
    broadcast_start,
    check_same_on_all_ranks,
    initial_weights,
    receive_start,
    resume_point,
)
from convoy.run.writer import NullWriter, RunWriter

CreateFolder = Callable[[RunConfig], RunFolder]  # creates the folder of a new run
OpenedRun = tuple[StartingPoint | FinishedRun, RunWriter | NullWriter, Observers]


def train(
    request: RunRequest,
    context: ProcessContext,
    stop: StopRequest,
    claim: CreateFolder = claim_new_folder,
) -> FinishedRun:
    """Train one phase; every process of the run calls this."""
    data, validation, context = open_data(request.resolved.config, context)
    with _open_run(request, context, data, claim) as (start, writer, observers):
        if isinstance(start, FinishedRun):
            return start
        folder = Path(start.folder)
        # On another host the folder may not exist.
        scratch = folder if folder.is_dir() else Path(gettempdir())
        parts = build(context, data, validation, scratch)
        lifecycle = Lifecycle(parts, start.metadata, writer, observers, stop)
        lifecycle.load(start)
        return FinishedRun(lifecycle.run(), folder)


def open_data(
    config: RunConfig, context: ProcessContext
) -> tuple[Source, Source | None, ProcessContext]:
    """Open the sources; plan again if the number of samples differs from the plan."""
    plan, validation = context.plan, None
    train = open_source(config.data, plan.network, "train")
    if config.validation.validation_mode != "none":
        validation = open_source(config.data, plan.validation_network, "validation")
    samples = num_used_samples(config, len(train))
    if samples != plan.loop.samples:
        context = replace(context, plan=plan_run(config, samples))
        plan_phases(context.plan)
    check_same_on_all_ranks(context.control, config, len(train))
    return train, validation, context


@contextmanager
def _open_run(
    request: RunRequest, context: ProcessContext, data: Source, claim: CreateFolder
) -> Iterator[OpenedRun]:
    """Yield the starting point, writer and observers; nothing is written before all checks."""
    if not context.control.is_rank_zero:
        yield receive_start(context), NullWriter(), Observers()
        return
    resolved = request.resolved
    run_fingerprint: dict[str, JSON] = {
        "options": training_values(resolved.settings),
        "data_sha256": fingerprint(data),
        **prediction_metadata(data, resolved.config, context.plan.validation_network),
    }
    run = request.folder
    fresh = initial_weights(context.plan) if run is None else None
    with claim(resolved.config) if run is None else open_run_folder(run) as folder:
        start = fresh or resume_point(request, context, folder, run_fingerprint)
        if isinstance(start, FinishedRun):
            broadcast_start(context, start)
            yield start, NullWriter(), Observers()
            return
        start = replace(start, folder=str(folder.path), metadata=run_fingerprint | start.metadata)
        settings = resolved.settings
        record = plan_as_json(context.plan, settings) | {"config_sha256": config_digest(settings)}
        write_atomically(folder.config, [settings_as_yaml(settings).encode()])
        write_atomically(folder.plan, [json.dumps(record, indent=1).encode(), b"\n"])
        folder.summary.unlink(missing_ok=True)  # of the part before the resume
        with _observers(folder, request) as observers:
            for notice in (*start.notices, *_start_notices(resolved, context, start)):
                observers.notify(notice)
            broadcast_start(context, start)
            yield start, RunWriter(folder, context.plan, observers), observers


@contextmanager
def _observers(folder: RunFolder, request: RunRequest) -> Iterator[Observers]:
    """The log files, the progress display and the user's observers."""
    log = Log(folder)
    progress = make_progress(request.resolved.config.report.progress, sys.stdout)
    observers = Observers([log.write, progress.write, *request.observers])
    try:
        if not folder.locked:
            text = (
                "this file system does not support locks: do not start a second run in this folder"
            )
            observers.notify(Noticed("no_lock", text, update=0))
        yield observers
    finally:
        progress.close()
        log.close()


def _start_notices(
    resolved: ResolvedConfig, context: ProcessContext, start: StartingPoint
) -> Iterator[Noticed]:
    """Notices about automatic choices, frozen layers and options without effect."""
    plan = context.plan
    if plan.is_balanced:
        text = f"pipeline stages are balanced by cost; splits: {', '.join(plan.stage_starts)}"
        yield Noticed("balanced", text, start.updates_done)
    if plan.num_frozen:
        sources = (plan.config.checkpoint.pretrained, plan.config.checkpoint.init_path)
        is_random = sources == (None, None) and start.contents is None
        random = "; their weights are random: set --pretrained or --init-path" * is_random
        text = f"frozen: {frozen_as_text(plan.network.layers, plan.num_frozen)}{random}"
        yield Noticed("frozen", text, start.updates_done)
    # A resumed run has already reported its original options. The plan does not know which device
    # `--device auto` selects; here it is known.
    settings = resolved.settings if start.contents is None else explicit_settings(resolved.settings)
    device = replace(resolved.config.device, device=context.device.type)
    for option in inactive_options(replace(resolved.config, device=device), settings):
        yield Noticed("no_effect", option.reason, start.updates_done)
