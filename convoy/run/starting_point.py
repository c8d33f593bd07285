"""Where a run starts: fresh, with the weights of another run or program, or resumed.

The first process finds it; all others receive it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from convoy.checkpoint.format import JSON, Contents, Tensors, match, weights_sha256
from convoy.checkpoint.store import Store, find_checkpoint
from convoy.config.option import WrongType, spelled
from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig, option_table
from convoy.config.settings import Setting, changed
from convoy.errors import CheckpointError, ConfigError, ConvoyError
from convoy.events import Noticed, Validated
from convoy.parallel import tensor_io
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.plan.plan import RunPlan
from convoy.report.log import json_safe, read_jsonl
from convoy.report.summary import Finished, Summary
from convoy.run.folder import RunFolder, RunRequest
from convoy.run.foreign_weights import IMPORTED, foreign_weights
from convoy.run.network import build_network, whole
from convoy.run.process import ProcessContext
from convoy.run.state import refuse_misfit

FIRST_WEIGHTS = "first_weights_sha256"  # in the state of a checkpoint


@dataclass(frozen=True)
class StartingPoint:
    """After how many updates, in which folder, and in which state if it is not fresh."""

    done: int = 0
    folder: str = ""
    validated: Validated | None = None
    contents: Contents | None = None
    weights: Tensors | None = None  # of a new run that does not begin with those of its seed
    facts: dict[str, JSON] = field(default_factory=dict)  # for every checkpoint of the run
    notices: list[Noticed] = field(default_factory=list)


def check_same_on_all_ranks(control: ControlGroup, config: RunConfig, samples: int) -> None:
    """All processes must have been started with one configuration, and see the same data.

    Only where things lie may differ from host to host.
    """
    anywhere = replace(
        config,
        data=replace(config.data, data_dir=None),
        checkpoint=replace(
            config.checkpoint, checkpoint_output_path=None, init_path=None, pretrained=None
        ),
        report=replace(config.report, log_dir="", name=None, name_suffix=None, progress="none"),
    )
    said = hashlib.sha256(f"{anywhere} {samples}".encode()).digest()
    own = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    found = [bytes(one.tolist()) for one in control.gather(SyncPoint.BEGIN, 0, own)]
    odd = [rank for rank, other in enumerate(found) if other != found[0]]
    if odd:
        raise ConfigError(
            f"rank {odd[0]} has other options or data than rank 0; "
            "start all processes with the same command line and the same data"
        )


def initial_weights(plan: RunPlan) -> StartingPoint:
    """A new run, with what `--init-path` or `--pretrained` leads to."""
    wish = plan.config.checkpoint
    if wish.pretrained is not None:
        return _pretrained(plan, wish.pretrained)
    return StartingPoint() if wish.init_path is None else _of_ours(plan, wish.init_path)


def _pretrained(plan: RunPlan, wish: str) -> StartingPoint:
    """Weights of another program, made to fit: a head for other classes is that of the seed."""
    try:
        place, fitted = foreign_weights(wish, plan.config, plan.network)
    except ConvoyError as error:
        raise type(error)(f"--pretrained {wish}: {error}") from error
    text = f"begins with the weights of {place}, names of {fitted.naming}"
    return _begun_with(fitted.model, text, (), fitted.notes)


def _of_ours(plan: RunPlan, wish: str) -> StartingPoint:
    """A run or checkpoint of ours, refused unless it is this very network."""
    if not Path(wish).exists():
        raise ConfigError(f"--init-path {wish} does not exist")
    try:
        found = find_checkpoint(Path(wish))
        network = build_network(plan.network, [whole(plan.network)], 0, torch.device("meta"))
        match(found.contents.model, network.tensors())
    except CheckpointError as error:
        raise CheckpointError(f"--init-path {wish}: {error}") from error
    text = f"begins with the weights of {found.path} after update {found.contents.update}"
    return _begun_with(found.contents.model, text, found.skipped, ())


def _begun_with(
    weights: Tensors, text: str, skipped: Sequence[str], notes: Sequence[str]
) -> StartingPoint:
    digest = weights_sha256(weights)
    notices = [Noticed("damaged_checkpoint", one, 0) for one in skipped]
    notices += [Noticed("init", one, 0) for one in (f"{text}, sha256 {digest}", *notes)]
    return StartingPoint(weights=weights, facts={FIRST_WEIGHTS: digest}, notices=notices)


def resumed_start(
    request: RunRequest, context: ProcessContext, folder: RunFolder, origin: dict[str, JSON]
) -> StartingPoint | Finished:
    """The checkpoint to resume from, if it belongs to this training and anything is left to do.

    `origin` is what the training is made of: its options and data.
    """
    store = Store(folder.checkpoints)
    store.clean()
    contents, skipped = _resume_checkpoint(store, request.checkpoint, folder.path)
    done, loop = contents.update, context.plan.loop
    if loop.stop_after is not None and loop.stop_after <= done:
        raise ConfigError(f"--stop-after {loop.stop_after} lies behind: {done} updates are done")
    if done >= loop.updates and folder.summary.exists():
        summary = Summary.read(folder.summary)
        if summary.exit_reason == "done" and summary.updates == loop.updates:
            return Finished(summary, folder.path, was_complete=True)
    notices = [Noticed("damaged_checkpoint", text, done) for text in skipped]
    notices += _check_same_training(contents, request, origin, context.machine())
    refuse_misfit(context.plan, contents)
    facts = {name: one for name, one in contents.state.items() if name == FIRST_WEIGHTS}
    return StartingPoint(
        done, validated=_last_validation(folder), contents=contents, facts=facts, notices=notices
    )


def _resume_checkpoint(
    store: Store, checkpoint: Path | None, run: Path
) -> tuple[Contents, list[str]]:
    """The checkpoint to resume from, and what is wrong with newer ones."""
    if checkpoint is not None:
        return store.load(checkpoint), []
    updates = store.updates()
    if updates == [0] and IMPORTED in store.load(0).state:
        raise ConfigError(
            f"{run} holds imported weights, which no run of ours has trained; begin one with "
            f"`convoy train --init-path {quote(str(run))}`"
        )
    if not updates:
        raise CheckpointError(
            f"{run} has no checkpoint: it ended before its first one; start again with "
            f"`convoy train --config-path {quote(str(run / 'config.yaml'))} --output NEW`"
        )
    found = store.newest()
    return found.contents, found.skipped


def _check_same_training(
    contents: Contents, request: RunRequest, origin: dict[str, JSON], machine: dict[str, JSON]
) -> list[Noticed]:
    """Refuse another training unless it is meant; what differs and is allowed is reported."""
    state, options = contents.state, _options(contents.state.get("options"))
    differences = changed(options, request.resolved.settings)
    if state.get("data_sha256") not in (None, origin["data_sha256"]):
        differences.append("the training data are others")
    _refuse_other_state(options, request.resolved)
    if differences and not request.override:
        raise CheckpointError(
            f"the checkpoint belongs to another training: {'; '.join(differences)}; "
            "give the run its own back, or add --override to go on with the change"
        )
    notices = [Noticed("override", text, contents.update) for text in differences]
    before = state.get("machine")
    if before not in (None, machine):
        text = f"the bits may differ from here on: saved on {before}, now on {machine}"
        notices.append(Noticed("other_machine", text, contents.update))
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


def _last_validation(folder: RunFolder) -> Validated | None:
    """What the part before may have measured just before it was lost."""
    lines = list(read_jsonl(folder.validation))
    try:
        return Validated(**lines[-1]) if lines else None  # type: ignore[arg-type]  # from JSON
    except TypeError:  # written by another version
        return None


def broadcast_start(context: ProcessContext, start: StartingPoint | Finished) -> None:
    """The first process says where to start, or that the run is complete already."""
    if isinstance(start, Finished):
        record = {"complete": str(start.folder), "summary": json_safe(asdict(start.summary))}
        context.control.broadcast(json.dumps(record).encode())
        return
    parts = {} if start.weights is None else {"weights": start.weights}
    if start.contents is not None:
        parts = start.contents.tensors
    record = {
        "done": start.done,
        "folder": start.folder,
        "validated": start.validated and asdict(start.validated),
        "state": start.contents and start.contents.state,
        "parts": list(parts),
    }
    context.control.broadcast(json.dumps(record).encode())
    world = context.groups.world.handle
    if parts and world is not None:
        named = ((part, one) for part, tensors in parts.items() for one in tensors.items())
        tensor_io.spread({f"{part}:{name}": tensor for part, (name, tensor) in named}, world)


def receive_start(context: ProcessContext) -> StartingPoint | Finished:
    """Every other process receives it; the folder of a complete run may be on another host."""
    record: dict[str, Any] = json.loads(context.control.broadcast(b""))
    if "complete" in record:
        summary = Summary.from_record(record["summary"])
        return Finished(summary, Path(record["complete"]), was_complete=True)
    world = context.groups.world.handle
    assert world is not None, "a single process is the first"
    parts: dict[str, Tensors] = {part: {} for part in record["parts"]}
    for label, tensor in tensor_io.spread(None, world).items() if parts else ():
        part, _, name = label.partition(":")
        parts[part][name] = tensor
    return StartingPoint(
        record["done"],
        record["folder"],
        record["validated"] and Validated(**record["validated"]),
        weights=parts.pop("weights", None),
        contents=Contents(**parts, state=record["state"]) if parts else None,
    )
