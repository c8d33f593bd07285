"""One phase of a run in one process: open data, build, load, train, finish.

The first process also opens the run folder, finds the starting point and tells the others; they
receive it. From then on every process does the same.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

from convoy.checkpoint.format import JSON
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.config.settings import binding_values, digest, settings_as_yaml
from convoy.config.support import inactive_options, typed
from convoy.data.source import Source
from convoy.data.sources.open import fingerprint, open_source
from convoy.events import Noticed, Observers, StopRequest
from convoy.files import write_atomically
from convoy.plan.plan import RunPlan, plan_phases, plan_run, used_samples
from convoy.plan.printed import frozen_as_text, plan_as_json
from convoy.report.log import Log
from convoy.report.progress import make_progress
from convoy.report.summary import Finished
from convoy.run.build import build
from convoy.run.folder import RunFolder, RunRequest, claim_new_folder, open_run_folder
from convoy.run.lifecycle import Lifecycle
from convoy.run.process import ProcessContext
from convoy.run.starting_point import (
    StartingPoint,
    broadcast_start,
    check_same_on_all_ranks,
    initial_weights,
    receive_start,
    resumed_start,
)
from convoy.run.writer import NullWriter, RunWriter

Claim = Callable[[RunConfig], RunFolder]  # makes the folder of a new run
Opened = tuple[StartingPoint | Finished, RunWriter | NullWriter, Observers]


def train(
    request: RunRequest, context: ProcessContext, stop: StopRequest, claim: Claim = claim_new_folder
) -> Finished:
    """From the configuration to the summary; every process of the run calls this."""
    data, validation, context = open_data(request.resolved.config, context)
    with _open_run(request, context, data, claim) as (start, writer, observers):
        if isinstance(start, Finished):
            return start
        folder = Path(start.folder)
        # On another host the folder may not be there.
        scratch = folder if folder.is_dir() else Path(gettempdir())
        parts = build(context, data, validation, scratch)
        lifecycle = Lifecycle(parts, start.facts, writer, observers, stop)
        lifecycle.load(start)
        return Finished(lifecycle.run(), folder)


def open_data(
    config: RunConfig, context: ProcessContext
) -> tuple[Source, Source | None, ProcessContext]:
    """The sources; and the plan made anew if there are other samples than it expects."""
    plan, validation = context.plan, None
    train = open_source(config.data, plan.network, "train")
    if config.validation.validation_mode != "none":
        validation = open_source(config.data, plan.validation_network, "validation")
    samples = used_samples(config, len(train))
    if samples != plan.loop.samples:
        context = replace(context, plan=plan_run(config, samples))
        plan_phases(context.plan)
    check_same_on_all_ranks(context.control, config, len(train))
    return train, validation, context


@contextmanager
def _open_run(
    request: RunRequest, context: ProcessContext, data: Source, claim: Claim
) -> Iterator[Opened]:
    """Where to start, and who writes and reports. The folder changes only when everything fits."""
    if not context.control.is_first:
        yield receive_start(context), NullWriter(), Observers()
        return
    resolved = request.resolved
    origin: dict[str, JSON] = {
        "options": binding_values(resolved.settings),
        "data_sha256": fingerprint(data),
    }
    run = request.folder
    begun = initial_weights(context.plan) if run is None else None
    with claim(resolved.config) if run is None else open_run_folder(run) as folder:
        start = begun or resumed_start(request, context, folder, origin)
        if isinstance(start, Finished):
            broadcast_start(context, start)
            yield start, NullWriter(), Observers()
            return
        start = replace(start, folder=str(folder.path), facts=origin | start.facts)
        _write_config(folder, resolved, context.plan)
        folder.summary.unlink(missing_ok=True)  # of the part before
        with _observers(folder, resolved.config) as observers:
            for notice in (*start.notices, *_start_notices(resolved, context, start)):
                observers.notify(notice)
            broadcast_start(context, start)
            yield start, RunWriter(folder, context.plan, observers), observers


def _write_config(folder: RunFolder, resolved: Resolved, plan: RunPlan) -> None:
    settings = resolved.settings
    record = plan_as_json(plan, settings) | {"config_sha256": digest(settings)}
    write_atomically(folder.config, [settings_as_yaml(settings).encode()])
    write_atomically(folder.plan, [json.dumps(record, indent=1).encode(), b"\n"])


@contextmanager
def _observers(folder: RunFolder, config: RunConfig) -> Iterator[Observers]:
    """The log and the display; what a person and programs see of the run."""
    log = Log(folder)
    progress = make_progress(config.report.progress, sys.stdout)
    observers = Observers([log.write, progress.write])
    try:
        if not folder.locked:
            text = "this file system knows no locks: start no second run in this folder"
            observers.notify(Noticed("no_lock", text, update=0))
        yield observers
    finally:
        progress.close()
        log.close()


def _start_notices(
    resolved: Resolved, context: ProcessContext, start: StartingPoint
) -> Iterator[Noticed]:
    """What was decided for the user, what is not trained, and options without effect."""
    plan = context.plan
    if plan.balanced:
        text = f"stages balanced by cost begin at {', '.join(plan.borders)}"
        yield Noticed("balanced", text, start.done)
    if plan.num_frozen:
        given = plan.config.checkpoint
        drawn = given.pretrained is None and given.init_path is None and start.contents is None
        by_chance = "; those are drawn by chance: no --pretrained or --init-path was given" * drawn
        text = f"leaves {frozen_as_text(plan.network.layers, plan.num_frozen)}{by_chance}"
        yield Noticed("frozen", text, start.done)
    # A run that is resumed has reported the options it began with. A plan leaves open what
    # `--device auto` finds; here it is known.
    settings = resolved.settings if start.contents is None else typed(resolved.settings)
    found = replace(resolved.config.device, device=context.device.type)
    for option in inactive_options(replace(resolved.config, device=found), settings):
        yield Noticed("no_effect", option.reason, start.done)
