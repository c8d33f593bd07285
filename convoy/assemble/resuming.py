"""Where a run that goes on stands: its checkpoint, its last measurement, whether it is complete."""

from pathlib import Path
from shlex import quote

from convoy.assemble.importing import IMPORTED
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.errors import CheckpointError, ConfigError
from convoy.events import Event, Noticed, Validated
from convoy.plan.loop import LoopPlan
from convoy.report.lines import read
from convoy.report.run_folder import RunFolder
from convoy.report.summary import Summary


def starting_point(
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


def last_validation(folder: RunFolder) -> Validated | None:
    """What the part before may have measured just before it was lost."""
    lines = list(read(folder.validation)) if folder.validation.exists() else []
    try:
        return Validated(**lines[-1]) if lines else None  # type: ignore[arg-type]  # from JSON
    except TypeError:  # written by another version
        return None


def is_complete(folder: RunFolder, loop: LoopPlan, done: int) -> bool:
    """Whether nothing is left to do; a limit that was passed long ago is a mistake."""
    if loop.stop_after is not None and loop.stop_after <= done:
        raise ConfigError(f"--stop-after {loop.stop_after} lies behind: {done} updates are done")
    return done >= loop.updates and _is_summed_up(folder, loop.updates)


def _is_summed_up(folder: RunFolder, updates: int) -> bool:
    if not folder.summary.exists():
        return False
    summary = Summary.read(folder.summary)
    return summary.exit_reason == "done" and summary.updates == updates
