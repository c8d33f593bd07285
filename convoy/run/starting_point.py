"""Where a run starts: new, with the weights of another run or library, or resumed.

Rank 0 determines the starting point; all other ranks receive it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from convoy.checkpoint.format import JSON, CheckpointContents, Tensors, check_match, weights_sha256
from convoy.checkpoint.store import CheckpointStore, find_checkpoint
from convoy.config.option import OptionTypeError, format_value
from convoy.config.resolve import ResolvedConfig
from convoy.config.schema import (
    RunConfig,
    Setting,
    flatten_config,
    option_table,
    training_changes,
)
from convoy.errors import CheckpointError, ConfigError, ConvoyError
from convoy.events import Noticed, Validated
from convoy.parallel import tensor_io
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.planning.plan import RunPlan
from convoy.report.log import json_safe, read_jsonl
from convoy.report.summary import FinishedRun, Summary
from convoy.run.folder import RunFolder, RunRequest
from convoy.run.import_export import IMPORTED_FROM, load_foreign_weights, origin_notes
from convoy.run.network import build_network
from convoy.run.process import ProcessContext
from convoy.run.state import check_fits
from convoy.text import pluralize

INITIAL_WEIGHTS = "first_weights_sha256"  # in the state of a checkpoint
_FOLDER_OPTIONS = ("data_dir", "checkpoint_output_path", "init_path", "pretrained", "log_dir")
_HOST_OPTIONS = (*_FOLDER_OPTIONS, "name", "name_suffix", "progress")  # may differ between hosts


@dataclass(frozen=True)
class StartingPoint:
    """Finished updates, folder, and the state of a resumed run."""

    updates_done: int = 0
    folder: str = ""
    validated: Validated | None = None
    contents: CheckpointContents | None = None
    weights: Tensors | None = None  # initial weights of a new run, if not random
    metadata: dict[str, JSON] = field(default_factory=dict)  # saved in every checkpoint of the run
    notices: list[Noticed] = field(default_factory=list)


def check_same_on_all_ranks(control: ControlGroup, config: RunConfig, samples: int) -> None:
    """Check that all processes have the same configuration and data."""
    values = flatten_config(config)
    shared = {name: value for name, value in values.items() if name not in _HOST_OPTIONS}
    digest = hashlib.sha256(f"{shared} {samples}".encode()).digest()
    local = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    gathered = control.all_gather_tensor(SyncPoint.START, 0, local)
    digests = [bytes(tensor.tolist()) for tensor in gathered]
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise ConfigError(
            f"rank {different[0]} has different options or data than rank 0; "
            "start all processes with the same command line and the same data"
        )


def initial_weights(plan: RunPlan) -> StartingPoint:
    """A new run, with the weights of `--init-path` or `--pretrained`, if set."""
    options = plan.config.checkpoint
    if options.pretrained is not None:
        return _from_pretrained(plan, options.pretrained)
    if options.init_path is not None:
        return _from_checkpoint(plan, options.init_path)
    return StartingPoint()


def _from_pretrained(plan: RunPlan, source: str) -> StartingPoint:
    """Load weights of another library; a head for different classes is initialized."""
    try:
        loaded = load_foreign_weights(source, plan.config, plan.network)
    except ConvoyError as error:
        raise type(error)(f"--pretrained {source}: {error}") from error
    fitted, notes = loaded.fitted, origin_notes(loaded, plan.config)
    text = f"initial weights: {loaded.source} ({fitted.naming} keys)"
    return _start_with_weights(fitted.model, text, (), [*fitted.notes, *notes])


def _from_checkpoint(plan: RunPlan, source: str) -> StartingPoint:
    """Load weights of a run or checkpoint; the network must be the same."""
    if not Path(source).exists():
        raise ConfigError(f"--init-path {source} does not exist")
    try:
        checkpoint = find_checkpoint(Path(source))
        network = build_network(plan.network, 0, torch.device("meta"))
        check_match(checkpoint.contents.model, network.tensors())
    except CheckpointError as error:
        raise CheckpointError(f"--init-path {source}: {error}") from error
    text = f"initial weights: {checkpoint.path}, update {checkpoint.contents.update}"
    return _start_with_weights(checkpoint.contents.model, text, checkpoint.skipped, ())


def _start_with_weights(
    weights: Tensors, text: str, skipped: Sequence[str], notes: Sequence[str]
) -> StartingPoint:
    digest = weights_sha256(weights)
    notices = [Noticed("damaged_checkpoint", problem, 0) for problem in skipped]
    notices += [Noticed("init", line, 0) for line in (f"{text}, sha256 {digest}", *notes)]
    return StartingPoint(weights=weights, metadata={INITIAL_WEIGHTS: digest}, notices=notices)


def resume_point(
    request: RunRequest, context: ProcessContext, folder: RunFolder, fingerprint: dict[str, JSON]
) -> StartingPoint | FinishedRun:
    """Find the checkpoint to resume from, and check that it belongs to this run.

    `fingerprint`: options and data hash that identify the run.
    """
    store = CheckpointStore(folder.checkpoints)
    store.clean_up()
    contents, skipped = _resume_checkpoint(store, request.checkpoint, folder.path)
    done, loop = contents.update, context.plan.loop
    if loop.stop_after is not None and loop.stop_after <= done:
        raise ConfigError(
            f"--stop-after {loop.stop_after} must be greater than the {pluralize(done, 'update')} "
            "already done"
        )
    if done >= loop.updates and folder.summary.exists():
        summary = Summary.read(folder.summary)
        if summary.exit_reason == "done" and summary.updates == loop.updates:
            return FinishedRun(summary, folder.path, was_complete=True)
    notices = [Noticed("damaged_checkpoint", text, done) for text in skipped]
    notices += _check_same_run(contents, request, fingerprint, context.machine_info())
    check_fits(context.plan, contents)
    metadata = {name: value for name, value in contents.state.items() if name == INITIAL_WEIGHTS}
    return StartingPoint(
        done,
        validated=_last_validation(folder),
        contents=contents,
        metadata=metadata,
        notices=notices,
    )


def _resume_checkpoint(
    store: CheckpointStore, checkpoint: Path | None, run: Path
) -> tuple[CheckpointContents, list[str]]:
    """Return the checkpoint to resume from, and the problems of newer ones."""
    if checkpoint is not None:
        return store.load(checkpoint), []
    updates = store.updates()
    if updates == [0] and IMPORTED_FROM in store.load(0).state:
        raise ConfigError(
            f"{run} contains imported weights, not a run; start one with "
            f"`convoy train --init-path {quote(str(run))}`"
        )
    if not updates:
        raise CheckpointError(
            f"{run} has no checkpoint: it ended before its first one; start again with "
            f"`convoy train --config-path {quote(str(run / 'config.yaml'))} --output NEW`"
        )
    newest = store.load_newest()
    return newest.contents, newest.skipped


def _check_same_run(
    contents: CheckpointContents,
    request: RunRequest,
    fingerprint: dict[str, JSON],
    machine: dict[str, JSON],
) -> list[Noticed]:
    """Refuse changed options or data without --override; report allowed differences."""
    state, options = contents.state, _saved_options(contents.state.get("options"))
    differences = training_changes(options, request.resolved.settings)
    if state.get("data_sha256") not in (None, fingerprint["data_sha256"]):
        differences.append("the training data has changed")
    _check_optimizer_state(options, request.resolved)
    if differences and not request.override:
        raise CheckpointError(
            f"the checkpoint does not match this run: {'; '.join(differences)}; "
            "restore the original options or data, or add --override to continue anyway"
        )
    notices = [Noticed("override", text, contents.update) for text in differences]
    saved_machine = state.get("machine")
    if saved_machine not in (None, machine):
        text = (
            f"results may not be bit-exact from here on: saved on {saved_machine}, now on {machine}"
        )
        notices.append(Noticed("other_machine", text, contents.update))
    return notices


def _check_optimizer_state(saved: dict[str, Setting], resolved: ResolvedConfig) -> None:
    """Refuse another optimizer: state names may be the same, but not their meaning."""
    for name in ("optimizer", "loss_velocity_scaling_ratio"):
        old, new = saved.get(name), resolved.settings[name]
        if old is not None and old.value != new.value:
            flag = option_table()[name].shown_flag
            raise CheckpointError(
                f"the optimizer state was saved with {flag} {format_value(old.value)}, which is "
                f"incompatible with {format_value(new.value)}; resume with the original value, or "
                "start a new run with --init-path"
            )


def _saved_options(saved: JSON) -> dict[str, Setting]:
    """The options a checkpoint was trained with, as far as this version knows them."""
    if not isinstance(saved, dict):
        return {}
    table = option_table()
    try:
        return {
            name: Setting(table[name].value_type.check(value), "checkpoint")
            for name, value in saved.items()
            if name in table
        }
    except OptionTypeError as error:
        raise CheckpointError(f"state.json contains invalid options: {error}") from None


def _last_validation(folder: RunFolder) -> Validated | None:
    """The last validation before the run was interrupted."""
    lines = list(read_jsonl(folder.validation))
    try:
        return Validated(**lines[-1]) if lines else None  # type: ignore[arg-type]  # from JSON
    except TypeError:  # written by another version
        return None


def broadcast_start(context: ProcessContext, start: StartingPoint | FinishedRun) -> None:
    """Send the starting point from rank 0, or that the run is already complete."""
    if isinstance(start, FinishedRun):
        record = {"complete": str(start.folder), "summary": json_safe(asdict(start.summary))}
        context.control.broadcast(json.dumps(record).encode())
        return
    parts = {} if start.weights is None else {"weights": start.weights}
    if start.contents is not None:
        parts = start.contents.tensors
    record = {
        "done": start.updates_done,
        "folder": start.folder,
        "validated": start.validated and asdict(start.validated),
        "state": start.contents and start.contents.state,
        "parts": list(parts),
    }
    context.control.broadcast(json.dumps(record).encode())
    world = context.groups.world.process_group
    if world is not None:
        for tensors in parts.values():
            tensor_io.broadcast(tensors, world)


def receive_start(context: ProcessContext) -> StartingPoint | FinishedRun:
    """Receive the starting point; the folder of a complete run may be on another host."""
    record: dict[str, Any] = json.loads(context.control.broadcast(b""))
    if "complete" in record:
        summary = Summary.from_record(record["summary"])
        return FinishedRun(summary, Path(record["complete"]), was_complete=True)
    world = context.groups.world.process_group
    assert world is not None, "a single process is rank 0"
    parts = {part: tensor_io.broadcast(None, world) for part in record["parts"]}
    return StartingPoint(
        record["done"],
        record["folder"],
        record["validated"] and Validated(**record["validated"]),
        weights=parts.pop("weights", None),
        contents=CheckpointContents(**parts, state=record["state"]) if parts else None,
    )
