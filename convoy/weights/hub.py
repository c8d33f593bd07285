"""Weights from the Hugging Face hub (`hf:OWNER/NAME@REVISION`), and where published ones are."""

import logging
import os
import re
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from convoy.errors import ConfigError, DataError

SCHEME = "hf:"
_FILE = "model.safetensors"
_ADDRESS = re.compile(r"hf:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@([A-Za-z0-9._/-]+))?")
_TIMEOUT_SECONDS = 10


def is_hub(address: str) -> bool:
    """Whether this is an address on the hub, not a path."""
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
