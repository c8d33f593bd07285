"""Resume a run: its checkpoint, whether it belongs to the same training, whether it is complete."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from convoy.checkpoint.contents import Contents
from convoy.checkpoint.format import JSON
from convoy.checkpoint.store import Store
from convoy.config.option import WrongType, spelled
from convoy.config.resolve import Resolved
from convoy.config.schema import option_table
from convoy.config.settings import Setting, changed
from convoy.errors import CheckpointError, ConfigError
from convoy.events import Event, Noticed, Validated
from convoy.plan.loop import LoopPlan
from convoy.report.jsonl import read_jsonl
from convoy.report.summary import Summary
from convoy.run.folder import RunFolder
from convoy.run.import_weights import IMPORTED


@dataclass(frozen=True)
class Origin:
    """What a training is made of: options and data, and the machine its bits are promised for."""

    facts: dict[str, JSON]
    machine: dict[str, JSON]


def same_training(
    state: dict[str, JSON], resolved: Resolved, origin: Origin, override: bool
) -> list[Event]:
    """Refuse another training unless it is meant; what differs and is allowed is told."""
    update = state.get("update")
    at = update if isinstance(update, int) else 0
    differences = changed(_options(state.get("options")), resolved.settings)
    if state.get("data_sha256") not in (None, origin.facts["data_sha256"]):
        differences.append("the training data are others")
    _refuse_other_state(_options(state.get("options")), resolved)
    if differences and not override:
        raise CheckpointError(
            f"the checkpoint belongs to another training: {'; '.join(differences)}; "
            "give the run its own back, or add --override to go on with the change"
        )
    notices: list[Event] = [Noticed("override", text, at) for text in differences]
    if state.get("machine") not in (None, origin.machine):
        before, now = state.get("machine"), origin.machine
        text = f"the bits may differ from here on: saved on {before}, now on {now}"
        notices.append(Noticed("other_machine", text, at))
    return notices


def _refuse_other_state(saved: dict[str, Setting], resolved: Resolved) -> None:
    """Names of slots may be the same, but not what lies in them."""
    for name in ("optimizer", "loss_velocity_scaling_ratio"):
        before, now = saved.get(name), resolved.settings[name]
        if before is not None and before.value != now.value:
            flag = option_table()[name].flag
            raise CheckpointError(
                f"the optimizer's state was kept with {flag} {spelled(before.value)}, and means "
                f"something else with {spelled(now.value)}; go on with the former, or begin a new "
                "run with --init-path"
            )


def _options(saved: JSON) -> dict[str, Setting]:
    """The options a checkpoint was trained with, as far as this version knows them."""
    if not isinstance(saved, dict):
        return {}
    table = option_table()
    try:
        return {
            name: Setting(table[name].kind.check(value), "checkpoint")
            for name, value in saved.items()
            if name in table
        }
    except WrongType as wrong:
        raise CheckpointError(f"state.json holds options that are none: {wrong}") from None


def resume_checkpoint(
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
    lines = list(read_jsonl(folder.validation))
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
