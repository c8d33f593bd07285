"""One phase of a run in one process: open data, build, load, train, finish.

The first process also opens the run folder, finds the starting point and tells the others; they
receive it. From then on every process does the same.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir

from convoy.checkpoint.format import JSON
from convoy.checkpoint.store import Store
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.config.settings import binding_values, digest, settings_as_yaml
from convoy.config.support import inactive_options, typed
from convoy.data.sources.open import fingerprint, open_source
from convoy.data.sources.source import Source
from convoy.engine.stopping import StopRequest
from convoy.events import Event, Noticed, Observers
from convoy.files import write_atomically
from convoy.plan.plan import RunPlan, plan_phases, plan_run, used_samples
from convoy.plan.printed import frozen_as_text, plan_as_json
from convoy.report.log import Log
from convoy.report.progress import make_progress
from convoy.report.summary import Finished, Summary
from convoy.run.build import build
from convoy.run.folder import (
    RunFolder,
    claim_run_folder,
    new_run_folder,
    open_run_folder,
)
from convoy.run.initial_weights import initial_facts, initial_weights
from convoy.run.lifecycle import Lifecycle
from convoy.run.process import ProcessContext
from convoy.run.resume import Origin, is_complete, last_validation, resume_checkpoint, same_training
from convoy.run.starting_point import (
    StartingPoint,
    broadcast_start,
    check_same_on_all_ranks,
    receive_start,
)
from convoy.run.state import refuse_misfit
from convoy.run.writer import NullWriter, RunWriter


@dataclass(frozen=True)
class PhaseRequest:
    """What to train, and where: in a folder that `claim` makes, or, resumed, in `folder`."""

    resolved: Resolved
    claim: Callable[[], RunFolder] | None = None
    folder: Path | None = None
    checkpoint: Path | None = None
    override: bool = False


@dataclass(frozen=True)
class RunData:
    """The data of a run, and what every checkpoint says of its training."""

    train: Source
    validation: Source | None
    origin: dict[str, JSON]


@dataclass(frozen=True)
class _Opened:
    """What only the first process has: the folder, where to start, and what to report of it."""

    folder: RunFolder
    start: StartingPoint | Finished
    notices: Sequence[Event] = ()


def run_phase(request: PhaseRequest, context: ProcessContext, stop: StopRequest) -> Finished:
    """From the configuration to the summary; every process of the run calls this."""
    data, context = open_data(request.resolved, context)
    if not context.control.is_first:
        start = receive_start(context)
        if isinstance(start, Finished):
            return start
        return _train(context, data, start, Observers(), stop)
    with _open(request, context, data) as opened:
        start = opened.start
        if isinstance(start, Finished):
            broadcast_start(context, start)
            return start
        _write_config(opened.folder, request.resolved, context.plan)
        opened.folder.summary.unlink(missing_ok=True)  # of the part before
        with _observers(opened.folder, request.resolved.config) as observers:
            for notice in (*opened.notices, *_start_notices(request.resolved, context, start)):
                observers.notify(notice)
            broadcast_start(context, start)
            return _train(context, data, start, observers, stop, opened.folder)


def _train(
    context: ProcessContext,
    data: RunData,
    start: StartingPoint,
    observers: Observers,
    stop: StopRequest,
    folder: RunFolder | None = None,
) -> Finished:
    """Build, load, train, finish. Only the first process has the folder."""
    path = Path(start.folder)
    # On another host the folder may not be there.
    scratch = path if path.is_dir() else Path(gettempdir())
    writer = NullWriter() if folder is None else RunWriter(folder, context.plan, observers)
    parts = build(context, data.train, data.validation, scratch)
    lifecycle = Lifecycle(parts, data.origin | start.facts, writer, observers, stop)
    lifecycle.load(start)
    return Finished(lifecycle.run(), path)


def open_data(resolved: Resolved, context: ProcessContext) -> tuple[RunData, ProcessContext]:
    """The sources; and the plan made anew if there are other samples than it expects."""
    config, plan = resolved.config, context.plan
    train = open_source(config.data, plan.network, "train")
    validation = None
    if config.validation.validation_mode != "none":
        validation = open_source(config.data, plan.validation_network, "validation")
    samples = used_samples(config, len(train))
    if samples != plan.loop.samples:
        context = replace(context, plan=plan_run(config, samples))
        plan_phases(context.plan)
    check_same_on_all_ranks(context.control, config, len(train))
    origin: dict[str, JSON] = {}
    if context.control.is_first:
        origin = {"options": binding_values(resolved.settings), "data_sha256": fingerprint(train)}
    return RunData(train, validation, origin), context


@contextmanager
def _open(request: PhaseRequest, context: ProcessContext, data: RunData) -> Iterator[_Opened]:
    """The folder changes only when everything is known to fit."""
    if request.claim is not None:
        initial = initial_weights(context.plan)
        with request.claim() as folder:
            start = StartingPoint(0, str(folder.path), weights=initial.weights, facts=initial.facts)
            yield _Opened(folder, start, initial.notices)
        return
    assert request.folder is not None, "a run that is resumed has a folder"
    with open_run_folder(request.folder) as folder:
        yield _resumed(request, context, data, folder)


def _resumed(
    request: PhaseRequest, context: ProcessContext, data: RunData, folder: RunFolder
) -> _Opened:
    """The checkpoint to resume from, if it belongs to this training and anything is left to do."""
    store = Store(folder.checkpoints)
    store.clean()
    contents, notices = resume_checkpoint(store, request.checkpoint, folder.path)
    if is_complete(folder, context.plan.loop, contents.update):
        return _Opened(
            folder, Finished(Summary.read(folder.summary), folder.path, was_complete=True)
        )
    origin = Origin(data.origin, context.machine())
    notices += same_training(contents.state, request.resolved, origin, request.override)
    refuse_misfit(context.plan, contents)
    facts = initial_facts(contents.state)
    start = StartingPoint(
        contents.update, str(folder.path), last_validation(folder), contents, facts=facts
    )
    return _Opened(folder, start, notices)


def claim_new_folder(config: RunConfig) -> RunFolder:
    """The folder of a new run: as asked for, or the next of its kind."""
    if config.checkpoint.checkpoint_output_path is not None:
        return claim_run_folder(Path(config.checkpoint.checkpoint_output_path))
    report, stem = config.report, f"{config.network.model}-{config.data.data}"
    return new_run_folder(Path(report.log_dir), report.name, stem, report.name_suffix)


def _write_config(folder: RunFolder, resolved: Resolved, plan: RunPlan) -> None:
    settings = resolved.settings
    record = plan_as_json(plan, settings) | {"config_sha256": digest(settings)}
    write_atomically(folder.config, [settings_as_yaml(settings).encode()])
    write_atomically(folder.plan, [json.dumps(record, indent=1).encode(), b"\n"])


_UNLOCKED = Noticed(
    "no_lock", "this file system knows no locks: start no second run in this folder", update=0
)


@contextmanager
def _observers(folder: RunFolder, config: RunConfig) -> Iterator[Observers]:
    """The log and the display; what a person and programs see of the run."""
    log = Log(folder)
    progress = make_progress(config.report.progress, sys.stdout)
    observers = Observers([log.write, progress.write])
    try:
        if not folder.locked:
            observers.notify(_UNLOCKED)
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
