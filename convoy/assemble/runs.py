"""Start a run, or go on with one: configuration, folder, checkpoint and listeners around it."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from tempfile import gettempdir

from convoy.assemble.importing import IMPORTED
from convoy.assemble.initial import initial_weights
from convoy.assemble.keeper import Keeper
from convoy.assemble.keeping import KeptElsewhere
from convoy.assemble.origin import Origin, same_training
from convoy.assemble.post import Post, posted
from convoy.assemble.sources import fingerprint, open_source
from convoy.assemble.start import Start, hear_start, nothing_to_do, refuse_differences, tell_start
from convoy.assemble.state import refuse_misfit
from convoy.assemble.training import Material, TrainingRun
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.checkpoint.strict_json import JSON
from convoy.config.effects import typed, without_effect
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.config.written import binding_values, digest, settings_as_yaml
from convoy.engine.outfeed import Outfeed, Subscriber
from convoy.engine.stopping import StopRequest
from convoy.errors import CheckpointError, ConfigError
from convoy.events import Event, Noticed, Validated
from convoy.launch.world import World
from convoy.plan.as_json import plan_as_json
from convoy.plan.frozen import frozen_as_text
from convoy.plan.loop import LoopPlan
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
from convoy.report.summary import Finished, Summary


@dataclass(frozen=True)
class Wish:
    """How a run shall go on: its configuration, from where, and whether changes are meant."""

    resolved: Resolved
    checkpoint: Path | None
    override: bool


def start_run(resolved: Resolved, world: World, stop: StopRequest) -> Finished:
    """A new run in a new folder. Nothing is written before everything is known to fit."""
    with posted(world, plan_run(resolved.config)) as joined:
        prepared = _prepare(resolved, joined)
        if not joined.council.is_first:
            return _follow(prepared, stop)
        initial = initial_weights(prepared.plan)
        with _new_folder(resolved.config) as folder:
            _write_wishes(folder, prepared)
            with _listeners(folder, resolved.config) as listeners:
                scene = Scene(folder, listeners, stop)
                scene.tell(initial.notices)
                return _lead(prepared, Start(0, str(folder.path), weights=initial.weights), scene)


def resume_run(path: Path, wish: Wish, world: World, stop: StopRequest) -> Finished:
    """Go on with a run; the folder changes only when everything is known to fit."""
    with posted(world, plan_run(wish.resolved.config)) as joined:
        prepared = _prepare(wish.resolved, joined)
        if not joined.council.is_first:
            return _follow(prepared, stop)
        with open_run_folder(path) as folder:
            store = Store(folder.checkpoints)
            store.clean()
            contents, notices = _starting_point(store, wish.checkpoint, path)
            if _is_complete(folder, prepared.plan.loop, contents.update):
                joined.council.hear(nothing_to_do(folder.path))
                return Finished(Summary.read(folder.summary), folder.path, was_complete=True)
            notices += same_training(
                contents.state, prepared.resolved, prepared.origin, wish.override
            )
            refuse_misfit(prepared.plan, contents)
            _write_wishes(folder, prepared)
            folder.summary.unlink(missing_ok=True)  # that of the part before
            start = Start(contents.update, str(folder.path), _last_validation(folder), contents)
            with _listeners(folder, prepared.resolved.config) as listeners:
                scene = Scene(folder, listeners, stop)
                scene.tell(notices)
                return _lead(prepared, start, scene)


@dataclass(frozen=True)
class Scene:
    """What only the first process has: the folder, who listens, and who may ask to stop."""

    folder: RunFolder
    listeners: list[Subscriber]
    stop: StopRequest

    def tell(self, events: Iterable[Event]) -> None:
        """Before the run has an outfeed of its own."""
        for event in events:
            for listener in self.listeners:
                listener(event)


@dataclass(frozen=True)
class _Prepared:
    """Everything that can go wrong before the folder is touched has not."""

    resolved: Resolved
    post: Post
    material: Material

    @property
    def plan(self) -> RunPlan:
        return self.post.plan

    @property
    def origin(self) -> Origin:
        """What a checkpoint of this run says of its training."""
        return Origin(self.material.origin, self.post.machine())


def _prepare(resolved: Resolved, joined: Post) -> _Prepared:
    config = resolved.config
    train = open_source(config.data, joined.plan.network, "train")
    measured = config.validation.validation_mode != "none"
    validation = open_source(config.data, joined.plan.network, "validation") if measured else None
    post = replace(joined, plan=plan_run(config, len(train)))
    refuse_differences(post.council, config, len(train))
    origin: dict[str, JSON] = {}
    if post.council.is_first:
        origin = {
            "options": binding_values(resolved.settings),
            "data_sha256": fingerprint(train),
        }
    return _Prepared(resolved, post, Material(train, validation, origin))


def _lead(prepared: _Prepared, start: Start, scene: Scene) -> Finished:
    """The first process: tell the others where to begin, then go with them."""
    tell_start(prepared.post, start)
    outfeed = Outfeed()
    config = prepared.plan.config
    keep_copy = not config.memory.offload_optimizer  # it would hold what was put aside
    keeper = Keeper(scene.folder, config, outfeed, keep_copy)
    run = TrainingRun(prepared.post, prepared.material, outfeed, scene.folder.path)
    run.begin_at(start)
    scene.tell([*_choices(prepared.plan, start), *_in_vain(prepared, start)])
    summary = run.go(scene.stop, keeper, scene.listeners)
    return Finished(summary, scene.folder.path)


def _choices(plan: RunPlan, start: Start) -> list[Noticed]:
    """What was decided for the user, and what is left out of the training."""
    told: list[Noticed] = []
    if plan.balanced:
        text = f"stages balanced by cost begin at {', '.join(plan.borders)}"
        told.append(Noticed("balanced", text, start.done))
    if plan.frozen:
        wish = plan.config.checkpoint
        drawn = wish.pretrained is None and wish.init_path is None and start.contents is None
        by_chance = "; those are drawn by chance: no --pretrained or --init-path was given" * drawn
        text = f"leaves {frozen_as_text(plan.network.layers, plan.frozen)}{by_chance}"
        told.append(Noticed("frozen", text, start.done))
    return told


def _in_vain(prepared: _Prepared, start: Start) -> list[Noticed]:
    """Options without effect; what a run was begun with is not told again when it goes on.

    A plan leaves open what `--device auto` will find; here it is known.
    """
    settings, config = prepared.resolved.settings, prepared.resolved.config
    given = settings if start.contents is None else typed(settings)
    found = replace(config.device, device=prepared.post.device.type)
    options = without_effect(replace(config, device=found), given)
    return [Noticed("no_effect", one.reason, start.done) for one in options]


def _follow(prepared: _Prepared, stop: StopRequest) -> Finished:
    """Any other process: begin where the first one says."""
    start = hear_start(prepared.post)
    if isinstance(start, Path):
        return Finished(Summary.read(RunFolder(start).summary), start, was_complete=True)
    # On another host the folder may not be there.
    scratch = Path(start.folder) if Path(start.folder).is_dir() else Path(gettempdir())
    run = TrainingRun(prepared.post, prepared.material, Outfeed(), scratch)
    run.begin_at(start)
    return Finished(run.go(stop, KeptElsewhere(), []), Path(start.folder))


def _is_complete(folder: RunFolder, loop: LoopPlan, done: int) -> bool:
    if loop.stop_after is not None and loop.stop_after <= done:
        raise ConfigError(f"--stop-after {loop.stop_after} lies behind: {done} updates are done")
    return done >= loop.updates and _is_summed_up(folder, loop.updates)


def _new_folder(config: RunConfig) -> RunFolder:
    if config.checkpoint.checkpoint_output_path is not None:
        return claim_run_folder(Path(config.checkpoint.checkpoint_output_path))
    wish, stem = config.report, f"{config.network.model}-{config.data.data}"
    return new_run_folder(Path(wish.log_dir), wish.name, stem, wish.name_suffix)


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
    _refuse_imported(store, run)
    if not store.updates():
        raise CheckpointError(
            f"{run} has no checkpoint: it ended before its first one; start again with "
            f"`convoy train --config-path {quote(str(run / 'config.yaml'))} --output NEW`"
        )
    found = store.newest()
    update = found.contents.update
    return found.contents, [Noticed("damaged_checkpoint", text, update) for text in found.skipped]


def _refuse_imported(store: Store, run: Path) -> None:
    """Weights that `convoy import` brought here are no training that could go on."""
    if store.updates() == [0] and IMPORTED in store.load(0).state:
        raise ConfigError(
            f"{run} holds imported weights, which no run of ours has trained; begin one with "
            f"`convoy train --init-path {quote(str(run))}`"
        )


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
