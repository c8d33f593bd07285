"""Weights from the Hugging Face hub: `hf:OWNER/NAME`, or `hf:OWNER/NAME@REVISION`.

Only `model.safetensors` is fetched, into the hub's own cache. Needs the extra `hub`.
"""

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
_PLACE = re.compile(r"hf:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@([A-Za-z0-9._/-]+))?")
_SECONDS = 10


def is_hub(wish: str) -> bool:
    """Whether this is a place on the hub and no path."""
    return wish.startswith(SCHEME)


def fetch(wish: str) -> Path:
    """The file on this machine; a second time it is here already."""
    found = _PLACE.fullmatch(wish)
    if found is None:
        raise ConfigError(f"{wish!r} is no place on the hub; write hf:OWNER/NAME, as hf:timm/…")
    try:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        hub: Any = import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(
            f"{wish} needs huggingface_hub: pip install 'convoy-cnn[hub]', "
            "or get the file by other means and give its path"
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of each new try
    here = partial(hub.hf_hub_download, found[1], _FILE, revision=found[2])
    with suppress(Exception):  # not here yet, whatever the reason: ask the hub
        return Path(here(local_files_only=True))
    try:
        return Path(here(etag_timeout=_SECONDS))
    except Exception as error:  # its own errors, those of its transport, and those of the disk
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        if type(error).__name__ == "LocalEntryNotFoundError":
            reason = "the hub does not answer, and the file is not in its cache"
        raise DataError(
            f"{wish} could not be fetched: {reason:.200}; go online once, or get {_FILE} by other "
            "means and give its path"
        ) from error
