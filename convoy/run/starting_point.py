"""Where a run starts: found by the first process, broadcast to all."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from convoy.checkpoint.contents import Contents
from convoy.checkpoint.format import JSON
from convoy.config.schema import RunConfig
from convoy.errors import ConfigError
from convoy.events import Validated
from convoy.parallel import tensor_io as cargo
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.report.jsonl import json_safe
from convoy.report.summary import Finished, Summary
from convoy.run.process import ProcessContext

_PARTS = ("model", "optimizer", "averages")


@dataclass(frozen=True)
class StartingPoint:
    """After how many updates, in which folder, and in which state if it is not fresh."""

    done: int
    folder: str
    validated: Validated | None = None
    contents: Contents | None = None
    weights: cargo.Cargo | None = None  # of a new run that does not begin with those of its seed
    facts: dict[str, JSON] = field(default_factory=dict)  # of these weights, for its checkpoints


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


def broadcast_start(context: ProcessContext, start: StartingPoint | Finished) -> None:
    """The first process says where to start, or that the run is complete already."""
    if isinstance(start, Finished):
        record = {"complete": str(start.folder), "summary": json_safe(asdict(start.summary))}
        context.control.broadcast(json.dumps(record).encode())
        return
    contents = start.contents
    record = {
        "done": start.done,
        "folder": start.folder,
        "validated": None if start.validated is None else asdict(start.validated),
        "state": None if contents is None else contents.state,
        "weights": start.weights is not None,
    }
    context.control.broadcast(json.dumps(record).encode())
    tensors = start.weights if contents is None else _labeled(contents)
    world = context.groups.world.handle
    if tensors is not None and world is not None:
        cargo.spread(tensors, world)


def receive_start(context: ProcessContext) -> StartingPoint | Finished:
    """Every other process receives it; the folder of a complete run may be on another host."""
    record: dict[str, Any] = json.loads(context.control.broadcast(b""))
    if "complete" in record:
        summary = Summary.from_record(record["summary"])
        return Finished(summary, Path(record["complete"]), was_complete=True)
    validated = record["validated"]
    whole = context.groups.world.handle
    assert whole is not None, "who is alone is the first"
    contents = None
    if record["state"] is not None:
        contents = _contents(cargo.spread(None, whole), record["state"])
    return StartingPoint(
        record["done"],
        record["folder"],
        Validated(**validated) if validated else None,
        contents,
        cargo.spread(None, whole) if record["weights"] else None,
    )


def _labeled(contents: Contents) -> cargo.Cargo:
    parts = zip(_PARTS, (contents.model, contents.optimizer, contents.averages), strict=True)
    return {f"{part}:{name}": one for part, tensors in parts for name, one in tensors.items()}


def _contents(found: cargo.Cargo, state: dict[str, Any]) -> Contents:
    parts: dict[str, cargo.Cargo] = {part: {} for part in _PARTS}
    for label, tensor in found.items():
        part, _, name = label.partition(":")
        parts[part][name] = tensor
    model, optimizer, averages = (parts[part] for part in _PARTS)
    return Contents(model=model, optimizer=optimizer, averages=averages, state=state)
