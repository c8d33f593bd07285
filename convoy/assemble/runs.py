"""Begin a run, or go on with one: configuration, folder, checkpoint and listeners around it."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir

from convoy.assemble.initial import first_weights, initial_weights
from convoy.assemble.keeper import Keeper
from convoy.assemble.keeping import KeptElsewhere
from convoy.assemble.origin import Origin, same_training
from convoy.assemble.phases import (
    Wish,
    as_the_first_tells,
    fine_tuning,
    fine_tuning_again,
    has_begun,
    with_fine_tuning,
)
from convoy.assemble.post import Post, posted
from convoy.assemble.resuming import is_complete, last_validation, starting_point
from convoy.assemble.sources import fingerprint, open_source
from convoy.assemble.start import Start, hear_start, nothing_to_do, refuse_differences, tell_start
from convoy.assemble.state import refuse_misfit
from convoy.assemble.training import Material, TrainingRun
from convoy.checkpoint.store import Store
from convoy.checkpoint.strict_json import JSON
from convoy.config.effects import typed, without_effect
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.config.written import binding_values, digest, settings_as_yaml
from convoy.engine.outfeed import Outfeed, Subscriber
from convoy.engine.stopping import StopRequest
from convoy.events import Event, Noticed
from convoy.launch.world import World
from convoy.plan.as_json import plan_as_json
from convoy.plan.frozen import frozen_as_text
from convoy.plan.phases import plan_phases
from convoy.plan.places import FINE_TUNE
from convoy.plan.plan import RunPlan, plan_run, used_samples
from convoy.report.log import Log
from convoy.report.progress import make_progress
from convoy.report.run_folder import (
    RunFolder,
    claim_run_folder,
    new_run_folder,
    open_run_folder,
    reclaim_run_folder,
    write_atomically,
)
from convoy.report.summary import Finished, Summary


def start_run(resolved: Resolved, world: World, stop: StopRequest) -> Finished:
    """A new run, to the end of its last phase."""
    with posted(world, plan_run(resolved.config)) as joined:
        trained = _begin(resolved, joined, stop, _new_folder)
        return _followed_up(trained, Wish(resolved), joined, stop)


def resume_run(path: Path, wish: Wish, world: World, stop: StopRequest) -> Finished:
    """Go on with the phase that is not complete, to the end of the last one."""
    first, second = wish.by_phase(path)
    with posted(world, plan_run(wish.resolved.config)) as joined:
        return _followed_up(_go_on(path, first, joined, stop), second, joined, stop)


def _followed_up(trained: Finished, wish: Wish, joined: Post, stop: StopRequest) -> Finished:
    """Fine-tune what the first phase came to, if there is such a phase and it came so far."""
    if not wish.resolved.config.fine_tune.half_res_training:
        return trained
    trained = as_the_first_tells(trained, joined.council)
    if trained.summary.exit_reason != "done":
        return trained
    home, is_first = trained.folder / FINE_TUNE, joined.council.is_first
    # Only the first process must know which it is: all others hear from it where to begin.
    begun = is_first and has_begun(home)
    second = fine_tuning_again(trained, wish) if begun else fine_tuning(trained, wish)
    post = replace(joined, plan=plan_run(second.resolved.config))
    if begun:
        tuned = _go_on(home, second, post, stop)
    else:
        tuned = _begin(second.resolved, post, stop, lambda _: reclaim_run_folder(home))
    return with_fine_tuning(trained, tuned, is_first)


def _begin(
    resolved: Resolved, joined: Post, stop: StopRequest, claim: Callable[[RunConfig], RunFolder]
) -> Finished:
    """A new run in a new folder. Nothing is written before everything is known to fit."""
    prepared = _prepare(resolved, joined)
    if not joined.council.is_first:
        return _follow(prepared, stop)
    initial = initial_weights(prepared.plan)
    with claim(resolved.config) as folder:
        _write_wishes(folder, prepared)
        with _listeners(folder, resolved.config) as listeners:
            scene = Scene(folder, listeners, stop)
            scene.tell(initial.notices)
            start = Start(0, str(folder.path), weights=initial.weights)
            return _lead(prepared.remembering(initial.facts), start, scene)


def _go_on(path: Path, wish: Wish, joined: Post, stop: StopRequest) -> Finished:
    """Go on with a run; the folder changes only when everything is known to fit."""
    prepared = _prepare(wish.resolved, joined)
    if not joined.council.is_first:
        return _follow(prepared, stop)
    with open_run_folder(path) as folder:
        store = Store(folder.checkpoints)
        store.clean()
        contents, notices = starting_point(store, wish.checkpoint, path)
        if is_complete(folder, prepared.plan.loop, contents.update):
            done = Finished(Summary.read(folder.summary), folder.path, was_complete=True)
            joined.council.hear(nothing_to_do(done))
            return done
        notices += same_training(contents.state, prepared.resolved, prepared.origin, wish.override)
        refuse_misfit(prepared.plan, contents)
        _write_wishes(folder, prepared)
        folder.summary.unlink(missing_ok=True)  # that of the part before
        start = Start(contents.update, str(folder.path), last_validation(folder), contents)
        with _listeners(folder, prepared.resolved.config) as listeners:
            scene = Scene(folder, listeners, stop)
            scene.tell(notices)
            return _lead(prepared.remembering(first_weights(contents.state)), start, scene)


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

    def remembering(self, facts: dict[str, JSON]) -> "_Prepared":
        """The same, whose checkpoints say this of the training too."""
        material = replace(self.material, origin=self.material.origin | facts)
        return replace(self, material=material)


def _prepare(resolved: Resolved, joined: Post) -> _Prepared:
    config = resolved.config
    train = open_source(config.data, joined.plan.network, "train")
    measured = config.validation.validation_mode != "none"
    whole = joined.plan.validation_network
    validation = open_source(config.data, whole, "validation") if measured else None
    post = replace(joined, plan=plan_run(config, used_samples(config, len(train))))
    plan_phases(post.plan)  # what a later phase cannot do is told before the first one begins
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
    plan = prepared.plan
    keep_copy = not plan.config.memory.offload_optimizer  # it would hold what was put aside
    keeper = Keeper(scene.folder, plan, outfeed, keep_copy)
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
    if isinstance(start, Finished):
        return start
    # On another host the folder may not be there.
    scratch = Path(start.folder) if Path(start.folder).is_dir() else Path(gettempdir())
    run = TrainingRun(prepared.post, prepared.material, Outfeed(), scratch)
    run.begin_at(start)
    return Finished(run.go(stop, KeptElsewhere(), []), Path(start.folder))


def _new_folder(config: RunConfig) -> RunFolder:
    """Where a new run lies: as asked for, or the next of its kind."""
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
