"""Read named tensors from weight files without executing anything in them.

Reads `.safetensors`, torch's `.pth`, `.pt` and `.bin`, and convoy checkpoints and runs. Wrappers
around the state dict are removed and noted. Problems are CheckpointErrors.
"""

import json
import logging
import os
import re
import stat
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convoy.checkpoint.format import decode_metadata, decode_tensors
from convoy.checkpoint.store import find_checkpoint
from convoy.errors import CheckpointError, ConfigError, DataError

SAFETENSORS = ".safetensors"
PREDICTION = "prediction"  # key of the metadata with which an exported network can predict
_PICKLED = (".pth", ".pt", ".bin")
_KNOWN_SUFFIXES = ", ".join((SAFETENSORS, *_PICKLED))
# Averaged weights first: these are the ones to publish if a file has both.
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")  # added by DataParallel/DDP and torch.compile
_MAX_WRAPPERS = 8  # a dict may contain itself
_UNPICKLED_GLOBAL = re.compile(r"GLOBAL (\S+)")


@dataclass(frozen=True)
class ExternalWeights:
    """Tensors by their names in a file, and notes on the wrappers removed."""

    source: str
    tensors: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    architecture: str | None = None  # name of the network in its library, if the file has it


def read_weights(path: Path) -> ExternalWeights:
    """Read the weights of a file, or of a convoy checkpoint or run."""
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.is_dir():
        checkpoint = find_checkpoint(path)
        return ExternalWeights(str(checkpoint.path), checkpoint.contents.model, checkpoint.skipped)
    if path.suffix not in (SAFETENSORS, *_PICKLED):
        raise CheckpointError(f"{path} is not a supported weight file: use {_KNOWN_SUFFIXES}")
    try:
        _check_size(path)
        if path.suffix == SAFETENSORS:
            data = path.read_bytes()
            weights = _unwrap(str(path), decode_tensors(data), [])
            return replace(weights, architecture=_read_architecture(decode_metadata(data)))
        return _unwrap(str(path), _load_pickle(path), [])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is {error}") from error


def _check_size(path: Path) -> None:
    """Refuse anything but a regular file that fits into memory when unpacked."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    unpacked = status.st_size
    if path.suffix != SAFETENSORS and zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                unpacked = max(unpacked, sum(member.file_size for member in archive.infolist()))
        except zipfile.BadZipFile as error:
            raise ValueError(f"damaged: {error}") from error
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 2 * unpacked > memory:
        raise ValueError(
            f"too large: {unpacked:,} bytes, but this machine has {memory:,} bytes of memory"
        )


def _read_architecture(metadata: Mapping[str, str]) -> str | None:
    """The name of the network in its library, in a file that convoy exported."""
    try:
        description = json.loads(metadata.get(PREDICTION, "null"))
    except ValueError:
        return None
    name = description.get("architecture") if isinstance(description, dict) else None
    return name.rpartition("/")[2] if isinstance(name, str) else None


def _load_pickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats, irrelevant to the user
            return torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # whatever it raises, the file is unusable
        if match := _UNPICKLED_GLOBAL.search(str(error)):
            raise ValueError(
                f"refused: loading it would call {match[1]}, and only plain tensors are "
                "loaded; save its state_dict() again, or use .safetensors"
            ) from error
        # torch's message recommends to trust the file.
        raise ValueError(
            "damaged, or contains more than plain tensors; save its state_dict() again, or use "
            ".safetensors"
        ) from error


def _unwrap(source: str, value: Any, notes: list[str]) -> ExternalWeights:
    """Remove the wrappers around the state dict, one level at a time."""
    if not isinstance(value, dict):
        raise ValueError(f"not a state dict but a {type(value).__name__}")
    for wrapper in _WRAPPERS:
        if isinstance(value.get(wrapper), dict) and len(notes) < _MAX_WRAPPERS:
            return _unwrap(source, value[wrapper], [*notes, f"read from the key {wrapper!r}"])
    invalid = [str(name) for name in value if not isinstance(name, str)]
    invalid += [str(name) for name, tensor in value.items() if not isinstance(tensor, Tensor)]
    if invalid or not value:
        reason = f"{invalid[0]!r:.80} is not a named tensor" if invalid else "it is empty"
        raise ValueError(f"not a state dict: {reason}")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in value):
            bare = {name.removeprefix(prefix): tensor for name, tensor in value.items()}
            return _unwrap(source, bare, [*notes, f"removed the prefix {prefix!r} from all names"])
    tensors = {name: tensor.detach() for name, tensor in value.items()}
    return ExternalWeights(source, tensors, notes)


_HUB_FILE = "model.safetensors"
_ADDRESS = re.compile(r"hf:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@([A-Za-z0-9._/-]+))?")
_TIMEOUT_SECONDS = 10


def is_hub_address(address: str) -> bool:
    return address.startswith("hf:")


def download_from_hub(address: str) -> Path:
    """Return the path of the local file, downloading it if necessary."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ConfigError(f"{address!r} is not a valid Hub address; use hf:OWNER/NAME")
    try:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        hub: Any = import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(
            f"{address} needs huggingface_hub: pip install 'convoy-cnn[hub]', "
            "or download the file yourself and use its path"
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each retry
    download = partial(hub.hf_hub_download, match[1], _HUB_FILE, revision=match[2])
    with suppress(Exception):  # not in the cache, whatever the reason: download it
        return Path(download(local_files_only=True))
    try:
        return Path(download(etag_timeout=_TIMEOUT_SECONDS))
    except Exception as error:  # errors of the Hub, the network, or the disk
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        if type(error).__name__ == "LocalEntryNotFoundError":
            reason = "the Hub cannot be reached, and the file is not in its cache"
        raise DataError(
            f"{address} could not be downloaded: {reason:.200}; go online once, or "
            f"download {_HUB_FILE} yourself and use its path"
        ) from error


PUBLISHED = "published"

_PUBLISHED_WEIGHTS = {
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


def published_address(model: str) -> str:
    """Return the Hub address of the published weights of a model."""
    if model not in _PUBLISHED_WEIGHTS:
        raise ConfigError(
            f"no published weights for {model}, only for {', '.join(_PUBLISHED_WEIGHTS)}; "
            "use a file: --pretrained FILE"
        )
    return _PUBLISHED_WEIGHTS[model]
