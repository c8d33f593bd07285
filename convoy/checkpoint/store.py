"""The checkpoints of one run: a folder of folders `update-<N>`.

Saving is all or nothing, reading verifies every byte, and an old checkpoint goes only when enough
newer ones have been verified. One process writes at a time: the run folder's lock sees to that.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from convoy.checkpoint import reading
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.manifest import Manifest
from convoy.checkpoint.writing import (
    Draft,
    beside,
    make_folder,
    remove,
    require_space,
    storage_errors,
    sync_folder,
    temporary_folder,
    write_file,
)
from convoy.errors import CheckpointError, StorageError

_TEMPORARY = re.compile(r"(?:update-[0-9]+|write-test)\.tmp-[0-9a-f]{12}")
_REPLACED = re.compile(r"(update-[0-9]+)\.old-[0-9a-f]{12}")


class Found(NamedTuple):
    """The newest checkpoint that can be used, and what was wrong with those after it."""

    contents: Contents
    path: Path
    skipped: list[str]  # one line for each damaged one, the newest first


def every(update: int) -> bool:
    """All checkpoints are of one kind."""
    del update
    return True


class Store:
    """Saves, lists, loads and prunes the checkpoints in a folder."""

    def __init__(self, folder: Path, counts: Callable[[int], bool] = every) -> None:
        """One that does not count, such as that of a stop, takes no place among those kept."""
        self.folder = folder
        self._counts = counts
        self._verified: set[int] = set()  # hashed by this process; a glance is enough from then on

    def path(self, update: int) -> Path:
        """Where the checkpoint of an update is, or would be."""
        return self.folder / f"update-{update}"

    def check_writable(self) -> None:
        """Find out before the first update whether a checkpoint could be written at all."""
        probe = self.folder / "write-test"
        with storage_errors(self.folder, needed=1):
            make_folder(self.folder)
            with temporary_folder(probe) as folder:
                write_file(folder / "byte", [b"\n"])
                renamed = folder.rename(beside(probe, "tmp"))
                remove(renamed)

    def save(self, contents: Contents, update: int) -> Path:
        """Write a checkpoint; it is there completely or, after an error, not at all."""
        draft, target = Draft(contents), self.path(update)
        if draft.update != update:
            raise CheckpointError(f"contents of update {draft.update} saved as update {update}")
        with storage_errors(target, draft.bytes_needed):
            make_folder(self.folder)
            require_space(self.folder, draft.bytes_needed)
            with temporary_folder(target) as folder:
                self._publish(folder, target, draft.write(folder))
        return target

    def _publish(self, folder: Path, target: Path, manifest: Manifest) -> None:
        """Give a finished folder its name; one that already has it must be wrong to be replaced."""
        replaced = None
        if target.exists() or target.is_symlink():
            if _holds(target, manifest):
                return
            # No rename takes the place of a full folder. `clean` undoes this one if we die here.
            replaced = target.rename(beside(target, "old"))
        self._verified.discard(manifest.update)
        folder.rename(target)
        sync_folder(target.parent)
        if replaced:
            remove(replaced)

    def updates(self) -> list[int]:
        """Updates that have a checkpoint, in order; unfinished ones are never among them."""
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

    def newest(self) -> Found:
        """The newest usable checkpoint; damaged ones are passed over and told."""
        skipped: list[str] = []
        for update in reversed(self.updates()):
            try:
                return Found(self.load(update), self.path(update), skipped)
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
        """Delete what is older than the newest `keep` verified that count, but never `spare`."""
        if keep < 1:
            raise ValueError(f"at least one checkpoint must stay, not {keep}")
        sound, removed = 0, []
        for update in reversed(self.updates()):
            if sound < keep:
                sound += self._counts(update) and self._is_sound(update)
            elif update != spare:
                with storage_errors(self.path(update)):
                    remove(self.path(update))
                removed.append(update)
        return removed

    def _is_sound(self, update: int) -> bool:
        check = reading.glance if update in self._verified else reading.verify
        try:
            check(self.path(update))
        except CheckpointError:
            self._verified.discard(update)
            return False
        self._verified.add(update)
        return True

    def clean(self) -> list[str]:
        """Finish what a killed process left: remove drafts, put back what was being replaced."""
        left = [name for name in self._names() if _TEMPORARY.fullmatch(name)]
        with storage_errors(self.folder):
            for name in left:
                remove(self.folder / name)
            for name in self._names():
                if found := _REPLACED.fullmatch(name):
                    self._settle(self.folder / name, self.folder / found[1])
                    left.append(name)
        return left

    def _settle(self, replaced: Path, target: Path) -> None:
        if target.exists():
            remove(replaced)
        else:
            replaced.rename(target)
            sync_folder(self.folder)


def _holds(target: Path, manifest: Manifest) -> bool:
    """Whether the same files are already there, undamaged."""
    try:
        there = reading.verify(target)
    except CheckpointError:
        return False
    return there.update == manifest.update and there.files == manifest.files
