"""Contents → a finished folder on disk, or nothing at all.

Order: write and fsync each file → the manifest last → fsync the folder → rename → fsync the
parent. A process killed at any point leaves either the whole checkpoint or a name nobody lists.
"""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch

from convoy.checkpoint import manifest as manifests
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.manifest import Entry, Manifest
from convoy.checkpoint.strict_json import encode
from convoy.checkpoint.tensors import TensorFile
from convoy.errors import CheckpointError, StorageError

_BLOCK = 4096  # file systems give space in whole blocks, nearly always of this size
_SPARE_BLOCKS = 8  # the manifest, the folder itself, and what a file system adds
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)


def beside(path: Path, role: str) -> Path:
    """A free name next to this one: `update-5.tmp-1f…` while written, `.old-` while replaced."""
    return path.with_name(f"{path.name.split('.')[0]}.{role}-{secrets.token_hex(6)}")


class Draft:
    """A checkpoint that is about to be written: its files and their sizes are known."""

    def __init__(self, contents: Contents) -> None:
        self.update = contents.update
        try:
            self._state = encode(contents.state)
            self._tensors = {
                name: TensorFile(tensors)
                for name, tensors in (
                    (manifests.MODEL, contents.model),
                    (manifests.OPTIMIZER, contents.optimizer),
                    (manifests.AVERAGES, contents.averages),
                )
                if tensors or name == manifests.MODEL
            }
        except ValueError as error:
            raise CheckpointError(f"update {self.update} cannot be saved: {error}") from error

    @property
    def bytes_needed(self) -> int:
        """Space on disk, in whole blocks."""
        sizes = [len(self._state), *(file.bytes for file in self._tensors.values())]
        return (sum(-(-size // _BLOCK) for size in sizes) + _SPARE_BLOCKS) * _BLOCK

    def write(self, folder: Path) -> Manifest:
        """Every file on disk, the manifest last."""
        files = {
            name: write_file(folder / name, file.chunks()) for name, file in self._tensors.items()
        }
        files[manifests.STATE] = write_file(folder / manifests.STATE, [self._state])
        manifest = Manifest(
            update=self.update,
            files=files,
            torch=str(torch.__version__),
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        write_file(folder / manifests.NAME, [manifest.to_bytes()])
        sync_folder(folder)
        return manifest


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> Entry:
    """Write, flush and fsync; hashing and writing both let other threads run."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb", buffering=2**20) as file:
        _let_owner_use(path, 0o600)
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Entry(size, digest.hexdigest())


def make_folder(path: Path) -> None:
    """Create the folder and those above it, each one on disk before it is used."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _let_owner_use(path, 0o700)
    sync_folder(path.parent)


def _let_owner_use(path: Path, bits: int) -> None:
    """The umask decides about others; it must not lock us out of our own checkpoint."""
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def sync_folder(path: Path) -> None:
    """Put the names in a folder on disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems do not know fsync of a folder; they commit names by themselves.
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(folder)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to build in; gone afterwards unless it was renamed."""
    folder = beside(path, "tmp")
    try:
        folder.mkdir()
        _let_owner_use(folder, 0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a checkpoint so that no half of it is ever listed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    gone = beside(path, "tmp")
    path.rename(gone)
    shutil.rmtree(gone)


def free_bytes(path: Path) -> int | None:
    """Free space for this user where the path is, or would be; None where it is not told."""
    while not path.exists() and path != path.parent:
        path = path.parent
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize if space.f_blocks else None


def require_space(path: Path, needed: int) -> None:
    """Fail before the first byte rather than after the last free one."""
    free = free_bytes(path)
    if free is not None and free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextmanager
def storage_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """What the system refuses becomes a StorageError with its name and the numbers."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        free = _free_or_unknown(path)
        raise StorageError(
            f"{name} ({error.strerror}) at {path}: {needed:,} bytes needed, {free} free; earlier "
            "checkpoints are untouched; make room or give another --checkpoint-output-path"
        ) from error


def _free_or_unknown(path: Path) -> str:
    try:
        free = free_bytes(path)
    except OSError:
        return "an unknown number"
    return "an unknown number" if free is None else f"{free:,}"
