"""Start a run, or go on with one: configuration, folder, checkpoint and listeners around it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from convoy.assemble.availability import refuse_unavailable
from convoy.assemble.machine import choose_device, choose_threads
from convoy.assemble.sources import open_source
from convoy.assemble.training import Place, TrainingRun
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.config.layers import Setting
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig, build_config
from convoy.config.written import digest, settings_as_yaml
from convoy.data.source import Source
from convoy.engine.outfeed import Subscriber
from convoy.engine.stopping import StopRequest
from convoy.events import Event, Noticed, Validated
from convoy.plan.as_json import plan_as_json
from convoy.plan.plan import RunPlan, plan_run
from convoy.report.lines import read
from convoy.report.log import Log
from convoy.report.progress import make_progress
from convoy.report.run_folder import (
    RunFolder,
    claim_run_folder,
    new_run_folder,
    open_run_folder,
    write_atomically,
)
from convoy.report.summary import Summary


@dataclass(frozen=True)
class Finished:
    """A run that ended: what it came to and where it lies."""

    summary: Summary
    folder: Path
    was_complete: bool = False


def start_run(resolved: Resolved, stop: StopRequest) -> Finished:
    """A new run in a new folder. Nothing is written before everything is known to fit."""
    prepared = _prepare(resolved)
    with _new_folder(resolved.config) as folder:
        _write_wishes(folder, prepared)
        run = TrainingRun(prepared.plan, prepared.source, folder, prepared.place)
        run.store.check_writable()
        with _listeners(folder, resolved.config) as listeners:
            return _finish(run, run.go(0, stop, listeners))


def resume_run(
    path: Path, resolved: Resolved, checkpoint: Path | None, stop: StopRequest
) -> Finished:
    """Go on with a run from its newest sound checkpoint, or from the given one."""
    prepared = _prepare(resolved)
    with open_run_folder(path) as folder:
        store = Store(folder.checkpoints)
        store.clean()
        contents, notices = _starting_point(store, checkpoint)
        done = contents.update
        if done >= prepared.plan.loop.updates and _is_summed_up(folder):
            return Finished(Summary.read(folder.summary), folder.path, was_complete=True)
        _write_wishes(folder, prepared)
        run = TrainingRun(prepared.plan, prepared.source, folder, prepared.place)
        run.store.check_writable()
        run.go_on_from(contents)
        run.validated = _last_validation(folder)
        with _listeners(folder, resolved.config) as listeners:
            for notice in notices:
                for listener in listeners:
                    listener(notice)
            return _finish(run, run.go(done, stop, listeners))


@dataclass(frozen=True)
class _Prepared:
    """Everything that can go wrong before the folder is touched has not."""

    resolved: Resolved
    plan: RunPlan
    source: Source
    place: Place


def _prepare(resolved: Resolved) -> _Prepared:
    first = plan_run(resolved.config)
    refuse_unavailable(first)
    source = open_source(resolved.config.data, first.network, "train")
    plan = plan_run(resolved.config, len(source))
    device = choose_device(resolved.config.device)
    threads = choose_threads(resolved.config.device, plan.topology.processes_per_host)
    return _Prepared(_with_threads(resolved, threads), plan, source, Place(device, threads))


def _with_threads(resolved: Resolved, threads: int) -> Resolved:
    """The bits depend on the threads, so the number that was found is part of the run."""
    if resolved.config.device.threads:
        return resolved
    settings = resolved.settings | {"threads": Setting(threads, "cores of this machine")}
    return Resolved(build_config({name: one.value for name, one in settings.items()}), settings)


def _new_folder(config: RunConfig) -> RunFolder:
    if config.checkpoint.checkpoint_output_path is not None:
        return claim_run_folder(Path(config.checkpoint.checkpoint_output_path))
    stem = f"{config.network.model}-{config.data.data}"
    return new_run_folder(Path(config.report.log_dir), config.report.name, stem)


def _write_wishes(folder: RunFolder, prepared: _Prepared) -> None:
    settings = prepared.resolved.settings
    plan = plan_as_json(prepared.plan, settings) | {"config_sha256": digest(settings)}
    write_atomically(folder.config, [settings_as_yaml(settings).encode()])
    write_atomically(folder.plan, [json.dumps(plan, indent=1).encode(), b"\n"])


_UNLOCKED = Noticed(
    "no_lock", "this file system knows no locks: start no second run in this folder", update=0
)


@contextmanager
def _listeners(folder: RunFolder, config: RunConfig) -> Iterator[list[Subscriber]]:
    log = Log(folder)
    progress = make_progress(config.report.progress, sys.stdout)
    try:
        if not folder.locked:
            log.write(_UNLOCKED)
            progress.write(_UNLOCKED)
        yield [log.write, progress.write]
    finally:
        progress.close()
        log.close()


def _starting_point(store: Store, checkpoint: Path | None) -> tuple[Contents, list[Event]]:
    """The checkpoint to go on from, and what must be told of the ones passed over."""
    if checkpoint is not None:
        return store.load(checkpoint), []
    found = store.newest()
    update = found.contents.update
    return found.contents, [Noticed("damaged_checkpoint", text, update) for text in found.skipped]


def _last_validation(folder: RunFolder) -> Validated | None:
    """What the part before may have measured just before it was lost."""
    lines = list(read(folder.validation)) if folder.validation.exists() else []
    try:
        return Validated(**lines[-1]) if lines else None  # type: ignore[arg-type]  # from JSON
    except TypeError:  # written by another version
        return None


def _is_summed_up(folder: RunFolder) -> bool:
    return folder.summary.exists() and Summary.read(folder.summary).exit_reason == "done"


def _finish(run: TrainingRun, summary: Summary) -> Finished:
    summary.write(run.folder.summary)
    return Finished(summary, run.folder.path)
