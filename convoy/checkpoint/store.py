"""The checkpoints of one run: a folder of folders `update-<N>`.

Saving is all or nothing, reading verifies every byte, and an old checkpoint is removed only when
enough newer ones have been verified. One process writes at a time, which has the run folder's lock.
"""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from convoy.checkpoint import reading
from convoy.checkpoint.format import (
    MANIFEST,
    STATE,
    TENSOR_FILES,
    Contents,
    FileEntry,
    Manifest,
    TensorFile,
    encode_json,
)
from convoy.errors import CheckpointError, StorageError
from convoy.files import (
    FINE_TUNE,
    allow_owner,
    make_folder,
    require_space,
    storage_errors,
    sync_folder,
)

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


_WAY_OUT = "choose another --checkpoint-output-path; earlier checkpoints are untouched"
_storage_errors = partial(storage_errors, way_out=_WAY_OUT)
_TEMPORARY = re.compile(r"(?:update-[0-9]+|write-test)\.tmp-[0-9a-f]{12}")
_REPLACED = re.compile(r"(update-[0-9]+)\.old-[0-9a-f]{12}")


class LoadedCheckpoint(NamedTuple):
    """The newest valid checkpoint, and what was wrong with those after it."""

    contents: Contents
    path: Path
    skipped: list[str]  # one line per damaged checkpoint, the newest first


class Store:
    """Saves, lists, loads and prunes the checkpoints in a folder."""

    def __init__(self, folder: Path, counts: Callable[[int], bool] = lambda _: True) -> None:
        """`counts` says which checkpoints count when old ones are pruned: not those of a stop."""
        self.folder = folder
        self._counts = counts
        self._verified: set[int] = set()  # hashed by this process; sizes are enough from then on

    def path(self, update: int) -> Path:
        return self.folder / f"update-{update}"

    def check_writable(self) -> None:
        """Find out before the first update whether a checkpoint can be written."""
        probe = self.folder / "write-test"
        with _storage_errors("write in", self.folder, needed=1):
            make_folder(self.folder)
            with temporary_folder(probe) as folder:
                write_file(folder / "byte", [b"\n"])
                renamed = folder.rename(temporary_name(probe, "tmp"))
                remove(renamed)

    def save(self, contents: Contents, update: int) -> Path:
        """Write a checkpoint completely or, after an error, not at all."""
        draft, target = Draft(contents), self.path(update)
        if draft.update != update:
            raise CheckpointError(f"contents of update {draft.update} saved as update {update}")
        with _storage_errors("save", target, needed=draft.bytes_needed):
            make_folder(self.folder)
            require_space(self.folder, draft.bytes_needed)
            with temporary_folder(target) as folder:
                self._publish(folder, target, draft.write(folder))
        return target

    def _publish(self, folder: Path, target: Path, manifest: Manifest) -> None:
        """Rename a finished folder; an existing one is replaced if it differs or is damaged."""
        replaced = None
        if target.exists() or target.is_symlink():
            if _is_same(target, manifest):
                return
            # No rename takes the place of a full folder. `clean` undoes this one if we die here.
            replaced = target.rename(temporary_name(target, "old"))
        self._verified.discard(manifest.update)
        folder.rename(target)
        sync_folder(target.parent)
        if replaced:
            remove(replaced)

    def updates(self) -> list[int]:
        """Updates that have a complete checkpoint, in order."""
        found = (reading.update_of(name) for name in self._names())
        return sorted(update for update in found if update is not None)

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot list {self.folder}: {error.strerror}") from error

    def load(self, which: int | Path) -> Contents:
        """The checkpoint of an update of this run, or of any path; damage is an error."""
        return reading.load(self.path(which) if isinstance(which, int) else which)

    def newest(self) -> LoadedCheckpoint:
        """The newest valid checkpoint; damaged ones are skipped and listed."""
        skipped: list[str] = []
        for update in reversed(self.updates()):
            try:
                return LoadedCheckpoint(self.load(update), self.path(update), skipped)
            except CheckpointError as error:
                skipped.append(str(error))
        if not skipped:
            raise CheckpointError(f"no checkpoint in {self.folder}")
        raise CheckpointError(
            f"no usable checkpoint in {self.folder}, all {len(skipped)} are damaged: "
            + "; ".join(skipped)
        )

    def verify(self, update: int) -> None:
        """Read a checkpoint back from disk right after writing it; StorageError if it changed."""
        try:
            reading.verify(self.path(update))
        except CheckpointError as error:
            raise StorageError(f"written, but it does not read back: {error}") from error
        self._verified.add(update)

    def prune(self, keep: int, spare: int | None = None) -> list[int]:
        """Delete all older than the newest `keep` valid ones that count, but never `spare`."""
        if keep < 1:
            raise ValueError(f"at least one checkpoint must stay, not {keep}")
        kept, removed = 0, []
        for update in reversed(self.updates()):
            if kept < keep:
                kept += self._counts(update) and self._is_valid(update)
            elif update != spare:
                with _storage_errors("remove", self.path(update)):
                    remove(self.path(update))
                removed.append(update)
        return removed

    def _is_valid(self, update: int) -> bool:
        try:
            reading.verify(self.path(update), hash_files=update not in self._verified)
        except CheckpointError:
            self._verified.discard(update)
            return False
        self._verified.add(update)
        return True

    def clean(self) -> list[str]:
        """Clean up after a killed process: remove temporary folders, restore a replaced one."""
        left = [name for name in self._names() if _TEMPORARY.fullmatch(name)]
        with _storage_errors("clean", self.folder):
            for name in left:
                remove(self.folder / name)
            for renamed in filter(None, map(_REPLACED.fullmatch, self._names())):
                replaced, target = self.folder / renamed[0], self.folder / renamed[1]
                if target.exists():
                    remove(replaced)
                else:
                    replaced.rename(target)
                    sync_folder(self.folder)
                left.append(replaced.name)
        return left


def _is_same(target: Path, manifest: Manifest) -> bool:
    """Whether the same files are already there, undamaged."""
    try:
        existing = reading.verify(target)
    except CheckpointError:
        return False
    return existing.update == manifest.update and existing.files == manifest.files


def find_checkpoint(path: Path) -> LoadedCheckpoint:
    """The checkpoint at a path, or the newest of a run; CheckpointError if there is none."""
    if (path / MANIFEST).exists() or not path.is_dir():
        return LoadedCheckpoint(reading.load(path), path, [])
    tuned = Store(path / FINE_TUNE / "checkpoints")
    if tuned.updates():
        return tuned.newest()
    inside = path / "checkpoints"
    return Store(inside if inside.is_dir() else path).newest()


def largest_difference(run: Path, other: Path) -> float:
    """Of any weight in the newest checkpoints of two runs, without running statistics."""
    ours, theirs = (Store(path / "checkpoints").newest().contents.model for path in (run, other))
    weights = [name for name in ours if ".running_" not in name]
    return max(float((ours[name] - theirs[name]).abs().max()) for name in weights)
