"""Files that are whole or not there, and what tells one from a damaged one."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """All that lies under one name."""

    bytes: int
    sha256: str


def measure(path: Path) -> Measured | None:
    """What lies there now; None for nothing."""
    try:
        return _measure_folder(path) if path.is_dir() else _measure_file(path)
    except FileNotFoundError:
        return None


def _measure_file(path: Path) -> Measured:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Measured(os.fstat(file.fileno()).st_size, digest.hexdigest())


def _measure_folder(path: Path) -> Measured:
    """Of all files in it, in the order of their names."""
    total, digest = 0, hashlib.sha256()
    for name in sorted(os.fsencode(entry.name) for entry in path.iterdir()):
        one = _measure_file(path / os.fsdecode(name))
        total += one.bytes
        digest.update(b"%s\0%d\0%s\n" % (name, one.bytes, one.sha256.encode()))
    return Measured(total, digest.hexdigest())


def write_file(path: Path, content: bytes) -> None:
    """A small file beside the parts, whole or not there."""
    draft = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
