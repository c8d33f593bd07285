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
    """Contents that differ from update to update, small enough for thousands of trials."""
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3) + update
    return CheckpointContents(
        model={"fc.weight": weight, "bn.num_batches_tracked": torch.tensor(update)},
        optimizer={"fc.weight/velocity": weight / 8},
        averages={"fc.weight": weight / 2},
        state={"update": update, "seed": 7, "loss_scale": 128.0, "meters": {"loss": 0.5}},
    )


def fingerprint(contents: CheckpointContents) -> list[object]:
    """Equal exactly when two contents are."""
    tensors = (contents.model, contents.optimizer, contents.averages)
    return [*map(weights_sha256, tensors), contents.state]


def names(folder: Path) -> list[str]:
    """What is in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def ignore(*words: object):
    """A listener that does not listen, and a check that checks nothing."""


def refusal(path: Path) -> str:
    """Why the checkpoint is not loaded."""
    with pytest.raises(CheckpointError) as caught:
        load(path)
    return str(caught.value)


def forge(path: Path, files: dict[str, bytes], update: int = 3) -> Path:
    """A checkpoint folder with these very files and a manifest that vouches for them."""
    path.mkdir(parents=True)
    full = {
        "model.safetensors": b"".join(TensorFile(small(update).model).chunks()),
        "state.json": encode_json({"update": update}),
        **files,
    }
    for name, data in full.items():
        (path / name).write_bytes(data)
    vouch(path, {name: entry_of(data) for name, data in full.items()}, update)
    return path


def entry_of(data: bytes) -> FileEntry:
    """What a manifest says of these bytes."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def vouch(path: Path, entries: dict[str, FileEntry], update: int = 3) -> None:
    """Write a manifest that agrees with itself, whatever it names."""
    manifest = Manifest(update, entries, torch="2.13.0", created="2025-01-01T00:00:00Z")
    (path / "MANIFEST.json").write_bytes(manifest.to_bytes())
