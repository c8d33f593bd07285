"""The checkpoints of a run: a folder with subfolders `update-<N>`.

Saving is atomic, reading verifies every byte, and an old checkpoint is removed only after enough
newer ones have been verified. Only the process that has locked the run folder writes.
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
    CheckpointContents,
    FileEntry,
    Manifest,
    TensorFile,
    encode_json,
)
from convoy.errors import CheckpointError, StorageError
from convoy.files import (
    FINE_TUNE_FOLDER,
    ensure_owner_access,
    make_folder,
    require_space,
    storage_errors,
    sync_folder,
)

_BLOCK = 4096  # file systems allocate whole blocks, nearly always of this size
_SPARE_BLOCKS = 8  # for the manifest, the folder, and file system overhead


def temporary_name(path: Path, role: str) -> Path:
    """Return an unused sibling name: `update-5.tmp-1f…` while writing, `.old-` while replacing."""
    return path.with_name(f"{path.name.split('.')[0]}.{role}-{secrets.token_hex(6)}")


class EncodedCheckpoint:
    """A checkpoint ready to be written, with known files and sizes."""

    def __init__(self, contents: CheckpointContents) -> None:
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
        sizes = [len(self._state), *(file.bytes for file in self._tensors.values())]
        blocks = sum(-(-size // _BLOCK) for size in sizes)
        self.bytes_needed = (blocks + _SPARE_BLOCKS) * _BLOCK  # on disk

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
    """Write, hash and fsync a file; hashing and writing release the GIL."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb", buffering=2**20) as file:
        ensure_owner_access(path, 0o600)
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder next to `path`; remove it at the end unless it was renamed."""
    folder = temporary_name(path, "tmp")
    try:
        folder.mkdir()
        ensure_owner_access(folder, 0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint; a partially deleted one is never listed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    renamed = path.rename(temporary_name(path, "tmp"))
    shutil.rmtree(renamed)


_REMEDY = "choose another --output; earlier checkpoints are untouched"
_storage_errors = partial(storage_errors, remedy=_REMEDY)
_TEMPORARY_FOLDER = re.compile(r"(?:update-[0-9]+|write-test)\.tmp-[0-9a-f]{12}")
_REPLACED_FOLDER = re.compile(r"(update-[0-9]+)\.old-[0-9a-f]{12}")


class LoadedCheckpoint(NamedTuple):
    """The newest valid checkpoint, and the errors of newer damaged ones."""

    contents: CheckpointContents
    path: Path
    skipped: list[str]  # one error per damaged checkpoint, newest first


class CheckpointStore:
    """Saves, lists, loads and prunes the checkpoints in a folder."""

    def __init__(self, folder: Path, counts: Callable[[int], bool] = lambda _: True) -> None:
        """`counts` returns whether the checkpoint of an update counts towards `keep` of `prune`."""
        self.folder = folder
        self._counts_for_pruning = counts
        self._verified: set[int] = set()  # hashed by this process; sizes are enough from then on

    def path(self, update: int) -> Path:
        return self.folder / f"update-{update}"

    def check_writable(self) -> None:
        """Check before the first update that checkpoints can be written."""
        with _storage_errors("write to", self.folder, needed_bytes=1):
            make_folder(self.folder)
            with temporary_folder(self.folder / "write-test") as folder:
                write_file(folder / "byte", [b"\n"])
                remove_checkpoint(folder)

    def save(self, contents: CheckpointContents) -> Path:
        """Write a checkpoint atomically."""
        checkpoint, target = EncodedCheckpoint(contents), self.path(contents.update)
        with _storage_errors("save", target, needed_bytes=checkpoint.bytes_needed):
            make_folder(self.folder)
            require_space(self.folder, checkpoint.bytes_needed)
            with temporary_folder(target) as folder:
                self._publish(folder, target, checkpoint.write(folder))
        return target

    def _publish(self, folder: Path, target: Path, manifest: Manifest) -> None:
        """Rename a finished folder; replace an existing one if it differs or is damaged."""
        replaced = None
        if target.exists() or target.is_symlink():
            if _has_same_files(target, manifest):
                return
            # A rename cannot replace a non-empty folder. `clean_up` restores it after a crash here.
            replaced = target.rename(temporary_name(target, "old"))
        self._verified.discard(manifest.update)
        folder.rename(target)
        sync_folder(target.parent)
        if replaced:
            remove_checkpoint(replaced)

    def updates(self) -> list[int]:
        """Return the updates that have a complete checkpoint, in order."""
        updates = map(reading.parse_update, self._list_names())
        return sorted(update for update in updates if update is not None)

    def _list_names(self) -> list[str]:
        try:
            return [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot list {self.folder}: {error.strerror}") from error

    def load(self, which: int | Path) -> CheckpointContents:
        """Load the checkpoint of an update of this run, or at a path."""
        return reading.load(self.path(which) if isinstance(which, int) else which)

    def load_newest(self) -> LoadedCheckpoint:
        """Load the newest valid checkpoint; damaged ones are skipped and listed."""
        skipped: list[str] = []
        for update in reversed(self.updates()):
            try:
                return LoadedCheckpoint(self.load(update), self.path(update), skipped)
            except CheckpointError as error:
                skipped.append(str(error))
        if not skipped:
            raise CheckpointError(f"no checkpoint in {self.folder}")
        count = len(skipped)
        which = "the only checkpoint is" if count == 1 else f"all {count} checkpoints are"
        problems = "; ".join(skipped)
        raise CheckpointError(f"no usable checkpoint in {self.folder}, {which} damaged: {problems}")

    def verify(self, update: int) -> None:
        """Read a checkpoint back after writing it; raise StorageError if it is damaged."""
        try:
            reading.verify(self.path(update))
        except CheckpointError as error:
            raise StorageError(f"written, but cannot be read back: {error}") from error
        self._verified.add(update)

    def prune(self, keep: int, except_update: int | None = None) -> None:
        """Keep the newest `keep` valid checkpoints; delete older ones, except `except_update`.

        Checkpoints for which `counts` is false are not counted, and deleted when they are older.
        """
        assert keep >= 1
        num_kept = 0
        for update in reversed(self.updates()):
            if num_kept < keep:
                num_kept += self._counts_for_pruning(update) and self._is_valid(update)
            elif update != except_update:
                with _storage_errors("remove", self.path(update)):
                    remove_checkpoint(self.path(update))

    def _is_valid(self, update: int) -> bool:
        try:
            reading.verify(self.path(update), hash_files=update not in self._verified)
        except CheckpointError:
            self._verified.discard(update)
            return False
        self._verified.add(update)
        return True

    def clean_up(self) -> None:
        """Clean up after a killed process: remove temporary folders, restore a replaced one."""
        with _storage_errors("clean", self.folder):
            for name in filter(_TEMPORARY_FOLDER.fullmatch, self._list_names()):
                remove_checkpoint(self.folder / name)
            for renamed in filter(None, map(_REPLACED_FOLDER.fullmatch, self._list_names())):
                replaced, target = self.folder / renamed[0], self.folder / renamed[1]
                if target.exists():
                    remove_checkpoint(replaced)
                else:
                    replaced.rename(target)
                    sync_folder(self.folder)


def _has_same_files(target: Path, manifest: Manifest) -> bool:
    """Return whether the same files already exist, undamaged."""
    try:
        existing = reading.verify(target)
    except CheckpointError:
        return False
    return existing.update == manifest.update and existing.files == manifest.files


def find_checkpoint(path: Path) -> LoadedCheckpoint:
    """Load the checkpoint at a path, or the newest of a run."""
    if (path / MANIFEST).exists() or not path.is_dir():
        return LoadedCheckpoint(reading.load(path), path, [])
    fine_tuned = CheckpointStore(path / FINE_TUNE_FOLDER / "checkpoints")
    if fine_tuned.updates():
        return fine_tuned.load_newest()
    checkpoints = path / "checkpoints"
    return CheckpointStore(checkpoints if checkpoints.is_dir() else path).load_newest()


def max_weight_difference(run: Path, other: Path) -> float:
    """Return the largest difference of any weight between the newest checkpoints of two runs.

    Running statistics are ignored.
    """
    first, second = (find_checkpoint(path).contents.model for path in (run, other))
    weights = [name for name in first if ".running_" not in name]
    return max(float((first[name] - second[name]).abs().max()) for name in weights)
