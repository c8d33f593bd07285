"""Start a run, or go on with one: configuration, folder, checkpoint and listeners around it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from convoy.assemble.availability import refuse_unavailable
from convoy.assemble.machine import choose_device, choose_threads
from convoy.assemble.origin import Origin, same_training
from convoy.assemble.sources import fingerprint, open_source
from convoy.assemble.training import Material, Place, TrainingRun
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.checkpoint.strict_json import JSON
from convoy.config.layers import Setting
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig, build_config
from convoy.config.written import binding_values, digest, settings_as_yaml
from convoy.engine.outfeed import Subscriber
from convoy.engine.stopping import StopRequest
from convoy.errors import CheckpointError, ConfigError
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


@dataclass(frozen=True)
class Wish:
    """How a run shall go on: its configuration, from where, and whether changes are meant."""

    resolved: Resolved
    checkpoint: Path | None
    override: bool


def start_run(resolved: Resolved, stop: StopRequest) -> Finished:
    """A new run in a new folder. Nothing is written before everything is known to fit."""
    prepared = _prepare(resolved)
    with _new_folder(resolved.config) as folder:
        _write_wishes(folder, prepared)
        run = _make_run(folder, prepared)
        with _listeners(folder, resolved.config) as listeners:
            return _finish(run, run.go(0, stop, listeners))


def resume_run(path: Path, wish: Wish, stop: StopRequest) -> Finished:
    """Go on with a run; the folder changes only when everything is known to fit."""
    prepared = _prepare(wish.resolved)
    with open_run_folder(path) as folder:
        store = Store(folder.checkpoints)
        store.clean()
        contents, notices = _starting_point(store, wish.checkpoint, path)
        done, loop = contents.update, prepared.plan.loop
        if loop.stop_after is not None and loop.stop_after <= done:
            raise ConfigError(
                f"--stop-after {loop.stop_after} lies behind: {done} updates are done"
            )
        if done >= loop.updates and _is_summed_up(folder, loop.updates):
            return Finished(Summary.read(folder.summary), folder.path, was_complete=True)
        notices += same_training(contents.state, prepared.resolved, prepared.origin, wish.override)
        run = _make_run(folder, prepared)
        run.go_on_from(contents)
        run.validated = _last_validation(folder)
        _write_wishes(folder, prepared)
        folder.summary.unlink(missing_ok=True)  # that of the part before
        with _listeners(folder, prepared.resolved.config) as listeners:
            for notice in notices:
                for listener in listeners:
                    listener(notice)
            return _finish(run, run.go(done, stop, listeners))


@dataclass(frozen=True)
class _Prepared:
    """Everything that can go wrong before the folder is touched has not."""

    resolved: Resolved
    plan: RunPlan
    material: Material
    place: Place

    @property
    def origin(self) -> Origin:
        """What a checkpoint of this run says of its training."""
        return Origin(self.material.origin, self.place.machine())


def _prepare(resolved: Resolved) -> _Prepared:
    first = plan_run(resolved.config)
    refuse_unavailable(first)
    train = open_source(resolved.config.data, first.network, "train")
    measured = resolved.config.validation.validation_mode != "none"
    validation = (
        open_source(resolved.config.data, first.network, "validation") if measured else None
    )
    plan = plan_run(resolved.config, len(train))
    device = choose_device(resolved.config.device)
    threads = choose_threads(resolved.config.device, plan.topology.processes_per_host)
    settled = _settled(resolved, threads)
    origin: dict[str, JSON] = {
        "options": binding_values(settled.settings),
        "data_sha256": fingerprint(train),
    }
    material = Material(train, validation, origin)
    return _Prepared(settled, plan, material, Place(device, threads))


def _make_run(folder: RunFolder, prepared: _Prepared) -> TrainingRun:
    run = TrainingRun(prepared.plan, prepared.material, folder, prepared.place)
    run.store.check_writable()
    return run


def _settled(resolved: Resolved, threads: int) -> Resolved:
    """What was found here becomes part of the run: the bits depend on the threads, and a run may
    be resumed from another folder."""
    settings = dict(resolved.settings)
    if not resolved.config.device.threads:
        settings["threads"] = Setting(threads, "cores of this machine")
    if resolved.config.data.data_dir is not None:
        whole = str(Path(resolved.config.data.data_dir).absolute())
        settings["data_dir"] = Setting(whole, settings["data_dir"].source)
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


def _starting_point(
    store: Store, checkpoint: Path | None, run: Path
) -> tuple[Contents, list[Event]]:
    """The checkpoint to go on from, and what must be told of the ones passed over."""
    if checkpoint is not None:
        return store.load(checkpoint), []
    if not store.updates():
        raise CheckpointError(
            f"{run} has no checkpoint: it ended before its first one; start again with "
            f"`convoy train --config-path {quote(str(run / 'config.yaml'))} --output NEW`"
        )
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


def _is_summed_up(folder: RunFolder, updates: int) -> bool:
    if not folder.summary.exists():
        return False
    summary = Summary.read(folder.summary)
    return summary.exit_reason == "done" and summary.updates == updates


def _finish(run: TrainingRun, summary: Summary) -> Finished:
    summary.write(run.folder.summary)
    return Finished(summary, run.folder.path)
