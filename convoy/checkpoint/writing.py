"""Contents → a complete folder on disk, or nothing at all.

Order: write and fsync each file → the manifest last → fsync the folder → rename → fsync the
parent. A process killed at any point leaves the complete checkpoint or a name that is never listed.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch

from convoy.checkpoint.contents import Contents
from convoy.checkpoint.format import (
    MANIFEST,
    STATE,
    TENSOR_FILES,
    FileEntry,
    Manifest,
    TensorFile,
    encode_json,
)
from convoy.errors import CheckpointError
from convoy.files import allow_owner, sync_folder

_BLOCK = 4096  # file systems allocate whole blocks, nearly always of this size
_SPARE_BLOCKS = 8  # the manifest, the folder itself, and what a file system adds


def temporary_name(path: Path, role: str) -> Path:
    """A free name in the same folder: `update-5.tmp-1f…` while written, `.old-` while replaced."""
    return path.with_name(f"{path.name.split('.')[0]}.{role}-{secrets.token_hex(6)}")


class Draft:
    """A checkpoint to be written: its files and their sizes are known."""

    def __init__(self, contents: Contents) -> None:
        self.update = contents.update
        try:
            self._state = encode_json(contents.state)
            self._tensors = {
                TENSOR_FILES[part]: TensorFile(tensors)
                for part, tensors in contents.tensors.items()
                if tensors or part == "model"
            }
        except ValueError as error:
            raise CheckpointError(f"update {self.update} cannot be saved: {error}") from error

    @property
    def bytes_needed(self) -> int:
        """Space on disk, in whole blocks."""
        sizes = [len(self._state), *(file.bytes for file in self._tensors.values())]
        return (sum(-(-size // _BLOCK) for size in sizes) + _SPARE_BLOCKS) * _BLOCK

    def write(self, folder: Path) -> Manifest:
        """Write and sync every file, the manifest last."""
        files = {
            name: write_file(folder / name, file.chunks()) for name, file in self._tensors.items()
        }
        files[STATE] = write_file(folder / STATE, [self._state])
        manifest = Manifest(
            update=self.update,
            files=files,
            torch=str(torch.__version__),
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        write_file(folder / MANIFEST, [manifest.to_bytes()])
        sync_folder(folder)
        return manifest


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileEntry:
    """Write, hash and fsync; hashing and writing both release the interpreter."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb", buffering=2**20) as file:
        allow_owner(path, 0o600)
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A temporary folder next to `path`, removed at the end unless it was renamed."""
    folder = temporary_name(path, "tmp")
    try:
        folder.mkdir()
        allow_owner(folder, 0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a checkpoint; a partly deleted one is never listed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    renamed = path.rename(temporary_name(path, "tmp"))
    shutil.rmtree(renamed)
