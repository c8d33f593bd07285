"""A file of weights → named tensors. Nothing in it is ever executed.

`.safetensors`, torch's `.pth`, `.pt` and `.bin`, and checkpoints and runs of ours. What a
training script wraps around its weights is removed and noted. Problems are CheckpointErrors.
"""

import logging
import os
import re
import stat
import warnings
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convoy.checkpoint.format import decode_tensors
from convoy.checkpoint.store import find_checkpoint
from convoy.errors import CheckpointError, ConfigError, DataError

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


SCHEME = "hf:"
_FILE = "model.safetensors"
_ADDRESS = re.compile(r"hf:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@([A-Za-z0-9._/-]+))?")
_TIMEOUT_SECONDS = 10


def is_hub(address: str) -> bool:
    return address.startswith(SCHEME)


def fetch(address: str) -> Path:
    """The file on this machine, downloaded at the first call."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(f"{address!r} is not an address on the hub; write hf:OWNER/NAME")
    try:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        hub: Any = import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(
            f"{address} needs huggingface_hub: pip install 'convoy-cnn[hub]', "
            "or get the file by other means and give its path"
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports each retry
    download = partial(hub.hf_hub_download, found[1], _FILE, revision=found[2])
    with suppress(Exception):  # not in the cache, whatever the reason: ask the hub
        return Path(download(local_files_only=True))
    try:
        return Path(download(etag_timeout=_TIMEOUT_SECONDS))
    except Exception as error:  # its own errors, those of its transport, and those of the disk
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        if type(error).__name__ == "LocalEntryNotFoundError":
            reason = "the hub does not answer, and the file is not in its cache"
        raise DataError(
            f"{address} could not be fetched: {reason:.200}; go online once, or get {_FILE} by "
            "other means and give its path"
        ) from error


PUBLISHED = "published"

_WEIGHTS = {
    "resnet18": "hf:timm/resnet18.tv_in1k",
    "resnet34": "hf:timm/resnet34.tv_in1k",
    "resnet50": "hf:timm/resnet50.tv_in1k",
    "resnet101": "hf:timm/resnet101.tv_in1k",
    "resnet152": "hf:timm/resnet152.tv_in1k",
    "resnext50": "hf:timm/resnext50_32x4d.tv_in1k",
    "efficientnet-b0": "hf:timm/efficientnet_b0.ra_in1k",
    "efficientnet-b1": "hf:timm/efficientnet_b1.ft_in1k",
    "efficientnet-b2": "hf:timm/efficientnet_b2.ra_in1k",
    "efficientnet-b3": "hf:timm/efficientnet_b3.ra2_in1k",
    "efficientnet-b4": "hf:timm/efficientnet_b4.ra2_in1k",
    "mobilenet": "hf:timm/mobilenetv2_100.ra_in1k",
    "mobilenet-v3-large-published": "hf:timm/mobilenetv3_large_100.ra_in1k",
    "mobilenet-v3-small-published": "hf:timm/mobilenetv3_small_100.lamb_in1k",
}


def published(model: str) -> str:
    """The address of a network's published weights."""
    if model not in _WEIGHTS:
        raise ConfigError(
            f"no published weights are known for {model}, only for {', '.join(_WEIGHTS)}; "
            "give a file: --pretrained FILE"
        )
    return _WEIGHTS[model]
