"""Small checkpoint contents, and forged checkpoints with valid hashes."""

import hashlib
from pathlib import Path

import pytest
import torch

from convoy.checkpoint.format import (
    CheckpointContents,
    FileEntry,
    Manifest,
    TensorFile,
    encode_json,
    weights_sha256,
)
from convoy.checkpoint.reading import load
from convoy.errors import CheckpointError


def small(update: int = 3) -> CheckpointContents:
    """Contents that differ for each update, small enough for thousands of saves."""
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3) + update
    return CheckpointContents(
        model={"fc.weight": weight, "bn.num_batches_tracked": torch.tensor(update)},
        optimizer={"fc.weight/velocity": weight / 8},
        averages={"fc.weight": weight / 2},
        state={"update": update, "seed": 7, "loss_scale": 128.0, "meters": {"loss": 0.5}},
    )


def fingerprint(contents: CheckpointContents) -> list[object]:
    """Two fingerprints are equal if and only if the contents are equal."""
    tensors = (contents.model, contents.optimizer, contents.averages)
    return [*map(weights_sha256, tensors), contents.state]


def names(folder: Path) -> list[str]:
    """The sorted file names of a folder."""
    return sorted(path.name for path in folder.iterdir())


def ignore(*args: object):
    """A callback that does nothing."""


def refusal(path: Path) -> str:
    """The error message when the checkpoint is loaded."""
    with pytest.raises(CheckpointError) as caught:
        load(path)
    return str(caught.value)


def forge(path: Path, files: dict[str, bytes], update: int = 3) -> Path:
    """A checkpoint folder with these files and a manifest with their correct hashes."""
    path.mkdir(parents=True)
    full = {
        "model.safetensors": b"".join(TensorFile(small(update).model).chunks()),
        "state.json": encode_json({"update": update}),
        **files,
    }
    for name, data in full.items():
        (path / name).write_bytes(data)
    write_manifest(path, {name: entry_of(data) for name, data in full.items()}, update)
    return path


def entry_of(data: bytes) -> FileEntry:
    """The manifest entry of these bytes."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def write_manifest(path: Path, entries: dict[str, FileEntry], update: int = 3) -> None:
    """Write a well-formed manifest with any entries."""
    manifest = Manifest(update, entries, torch="2.13.0", created="2025-01-01T00:00:00Z")
    (path / "MANIFEST.json").write_bytes(manifest.to_bytes())
