"""A file of weights → named tensors. Nothing in it is ever executed.

`.safetensors`, torch's `.pth`, `.pt` and `.bin`, and checkpoints and runs of ours. What a
training script wraps around its weights is removed and noted. Problems are CheckpointErrors.
"""

import os
import re
import stat
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convoy.checkpoint.format import decode_tensors
from convoy.checkpoint.store import find_checkpoint
from convoy.errors import CheckpointError

SAFETENSORS = ".safetensors"
_PICKLED = (".pth", ".pt", ".bin")
_KINDS = ", ".join((SAFETENSORS, *_PICKLED))
# Averaged weights first: whoever keeps both publishes those.
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")  # of parallel wrappers and of torch.compile
_MAX_WRAPPERS = 8  # a table may be wrapped in itself
_CALLED = re.compile(r"GLOBAL (\S+)")


@dataclass(frozen=True)
class ForeignWeights:
    """Tensors by the names they have in a file, and notes on how they were found."""

    source: str
    tensors: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)


def read_weights(path: Path) -> ForeignWeights:
    """The weights in a file, or in a checkpoint or run of ours."""
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.is_dir():
        found = find_checkpoint(path)
        return ForeignWeights(str(found.path), found.contents.model, found.skipped)
    if path.suffix not in (SAFETENSORS, *_PICKLED):
        raise CheckpointError(f"{path} is no file of weights that is known here: {_KINDS}")
    try:
        _check_size(path)
        if path.suffix == SAFETENSORS:
            return _unwrap(str(path), decode_tensors(path.read_bytes()), [])
        return _unwrap(str(path), _unpickled(path), [])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is {error}") from error


def _check_size(path: Path) -> None:
    """Only a regular file that fits into memory, unpacked, is opened."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    unpacked = status.st_size
    if path.suffix != SAFETENSORS and zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                unpacked = max(unpacked, sum(one.file_size for one in archive.infolist()))
        except zipfile.BadZipFile as error:
            raise ValueError(f"damaged: {error}") from error
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 2 * unpacked > memory:
        raise ValueError(f"too large: {unpacked:,} bytes, this machine has {memory:,}")


def _unpickled(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats, which do not concern the user
            return torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # whatever it raises, the file is unusable
        if found := _CALLED.search(str(error)):
            raise ValueError(
                f"refused: it would call {found[1]} when loaded, and only plain tensors are "
                "read; save its state_dict() anew, or as .safetensors"
            ) from error
        # torch's own message advises to trust the file.
        raise ValueError(
            "damaged, or holds more than plain tensors, which are all that is read; save its "
            "state_dict() anew, or as .safetensors"
        ) from error


def _unwrap(source: str, value: Any, notes: list[str]) -> ForeignWeights:
    """Remove what is wrapped around the tensors, one level after the other."""
    if not isinstance(value, dict):
        raise ValueError(f"no table of named tensors but of type {type(value).__name__}")
    for wrapper in _WRAPPERS:
        if isinstance(value.get(wrapper), dict) and len(notes) < _MAX_WRAPPERS:
            return _unwrap(source, value[wrapper], [*notes, f"taken out of {wrapper!r}"])
    others = [str(name) for name in value if not isinstance(name, str)]
    others += [str(name) for name, one in value.items() if not isinstance(one, Tensor)]
    if others or not value:
        what = f"{others[0]!r:.80} in it is none" if others else "it is empty"
        raise ValueError(f"no table of named tensors: {what}")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in value):
            bare = {name.removeprefix(prefix): one for name, one in value.items()}
            return _unwrap(source, bare, [*notes, f"names without their {prefix!r}"])
    return ForeignWeights(source, {name: one.detach() for name, one in value.items()}, notes)
