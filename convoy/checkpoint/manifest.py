"""MANIFEST.json: which files make a checkpoint, with the size and SHA-256 of each.

It is written last, so a folder that has one is complete; it carries its own SHA-256, so that it
is as well protected as the files it speaks of. Problems are ValueErrors.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from convoy.checkpoint.strict_json import BYTES_LIMIT, JSON, encode, parse

NAME = "MANIFEST.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
AVERAGES = "averages.safetensors"
STATE = "state.json"

FORMAT = 1
_KIND = "convoy checkpoint"
_REQUIRED = {MODEL, STATE}
_KNOWN = {MODEL, OPTIMIZER, AVERAGES, STATE}
_UPDATE_LIMIT = 10**15
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One file as it was written."""

    bytes: int
    sha256: str

    def check(self, bytes: int, sha256: str) -> None:
        """Refuse a file that is not, bit for bit, the one that was written."""
        if bytes != self.bytes:
            raise ValueError(f"has {bytes:,} bytes, the manifest says {self.bytes:,}")
        if sha256 != self.sha256:
            raise ValueError(
                f"has SHA-256 {sha256[:12]}…, the manifest says {self.sha256[:12]}…: "
                "it was damaged or changed"
            )


@dataclass(frozen=True)
class Manifest:
    """The files of one checkpoint."""

    update: int
    files: Mapping[str, Entry]
    torch: str  # version that wrote it
    created: str  # UTC

    def to_bytes(self) -> bytes:
        """The file, the same for the same manifest."""
        files: dict[str, JSON] = {
            name: {"bytes": entry.bytes, "sha256": entry.sha256}
            for name, entry in self.files.items()
        }
        table: dict[str, JSON] = {
            "format": FORMAT,
            "kind": _KIND,
            "update": self.update,
            "files": files,
            "torch": self.torch,
            "created": self.created,
        }
        return encode({**table, "sha256": hashlib.sha256(encode(table)).hexdigest()})


def from_bytes(data: bytes) -> Manifest:
    """The manifest in these bytes, provided that they are exactly what was written."""
    table = parse(data)
    if not isinstance(table, dict) or table.get("kind") != _KIND:
        raise ValueError("is not the manifest of a convoy checkpoint")
    if table.get("format") != FORMAT:
        raise ValueError(f"is of version {table.get('format')!r:.40}, this program reads {FORMAT}")
    manifest = Manifest(
        update=_whole(table.get("update"), "update", _UPDATE_LIMIT),
        files=_entries(table.get("files")),
        torch=_text(table.get("torch"), "torch"),
        created=_text(table.get("created"), "created"),
    )
    if manifest.to_bytes() != data:
        raise ValueError("does not agree with its own SHA-256: it was damaged or changed")
    return manifest


def _entries(value: JSON) -> dict[str, Entry]:
    if not isinstance(value, dict):
        raise ValueError("names no files")
    # Checked before anything is opened: a name from outside must never become a path.
    for name in value:
        if name not in _KNOWN:
            raise ValueError(f"names {name[:80]!r}, which is no file of a checkpoint")
    if missing := sorted(_REQUIRED - value.keys()):
        raise ValueError(f"does not name {', '.join(missing)}")
    return {name: _entry(name, entry) for name, entry in value.items()}


def _entry(name: str, value: JSON) -> Entry:
    if not isinstance(value, dict):
        raise ValueError(f"has no size and SHA-256 for {name}")
    sha256 = _text(value.get("sha256"), f"SHA-256 of {name}")
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"has no SHA-256 for {name}")
    limit = BYTES_LIMIT if name == STATE else 2**63
    return Entry(_whole(value.get("bytes"), f"size of {name}", limit), sha256)


def _whole(value: JSON, what: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ValueError(f"gives {value!r:.40} as {what}; a whole number up to {limit:,} was meant")
    return value


def _text(value: JSON, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"gives {value!r:.40} as {what}; text was meant")
    return value
