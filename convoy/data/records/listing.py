"""The image files below class folders, in a fixed order; what is no image is listed with a reason.

A million files must not become a million objects: their names lie end to end in one block.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.config.user_text import printable
from convoy.data.source import Labels
from convoy.errors import DataError

SUFFIXES = (b".jpeg", b".jpg", b".png", b".bmp", b".gif", b".webp", b".tif", b".tiff")

_MOST_REMARKS = 1000  # about what was passed over; a folder may hold a million other files

FileId = tuple[int, int]  # device and inode: the same for all ways to one folder


@dataclass(frozen=True)
class Listing:
    """One split: class folders sorted by name, and in each its files sorted by name."""

    classes: tuple[bytes, ...]
    labels: Labels
    passed_over: tuple[str, ...]
    names: bytes  # below the class folder, one after the other
    ends: npt.NDArray[np.int64]  # where each name ends in `names`

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, number: int) -> bytes:
        """Of one file, below its class folder."""
        start = int(self.ends[number - 1]) if number else 0
        return self.names[start : int(self.ends[number])]

    def path(self, number: int) -> bytes:
        """Of one file, below the folder of the split."""
        return self.classes[int(self.labels[number])] + b"/" + self.name(number)


def list_images(home: Path) -> Listing:
    """Every image below the class folders of one split."""
    walk = _Walk(home)
    names, ends, counts = bytearray(), [np.empty(0, np.int64)], []
    for folder in walk.classes:
        found = sorted(walk.below(folder))
        if not found:
            walk.pass_over(folder, "a class folder without images")
        ends.append(len(names) + np.cumsum([len(name) for name in found], dtype=np.int64))
        names += b"".join(found)
        counts.append(len(found))
    return Listing(
        classes=walk.classes,
        labels=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        passed_over=walk.remarks(),
        names=bytes(names),
        ends=np.concatenate(ends),
    )


def class_folders(home: Path) -> tuple[bytes, ...]:
    """The names of the class folders of a split, sorted by their bytes."""
    return _Walk(home).classes


class _Walk:
    """A way through the folders of a split that enters each one once, whatever links say."""

    def __init__(self, home: Path) -> None:
        self._home = os.fsencode(home)
        self._remarks: list[str] = []
        self._passed_over = 0
        # Links back to the class folders and those above them are loops.
        self._entered = {_id(home.stat()), _id(home.parent.stat())}
        self.classes = tuple(sorted(self._enter_classes()))

    def pass_over(self, path: bytes, reason: str) -> None:
        self._passed_over += 1
        if len(self._remarks) < _MOST_REMARKS:
            self._remarks.append(f"{printable(os.fsdecode(path))}: {reason}")

    def remarks(self) -> tuple[str, ...]:
        """What was passed over, and why."""
        more = self._passed_over - len(self._remarks)
        return (*self._remarks, *([f"and {more} more"] if more else []))

    def _enter_classes(self) -> Iterator[bytes]:
        for entry in self._entries(b""):
            if _is_hidden(entry):
                self.pass_over(entry.name, "hidden")
            elif _kind(entry) != "folder":
                self.pass_over(entry.name, "not in a class folder")
            elif self._enter(entry, entry.name):
                yield entry.name

    def below(self, folder: bytes) -> Iterator[bytes]:
        """The images of a class folder and of all folders in it, in no order."""
        waiting = [folder + b"/"]
        while waiting:
            inner = waiting.pop()
            for entry in self._entries(inner):
                path = inner + entry.name
                kind = _kind(entry)
                if _is_hidden(entry):
                    self.pass_over(path, "hidden")
                elif kind == "folder":
                    if self._enter(entry, path):
                        waiting.append(path + b"/")
                elif kind != "file":
                    self.pass_over(path, kind)
                elif not entry.name.lower().endswith(SUFFIXES):
                    self.pass_over(path, "not named like an image")
                else:
                    yield path[len(folder) + 1 :]

    def _enter(self, entry: os.DirEntry[bytes], path: bytes) -> bool:
        with _plain_errors(self._home + b"/" + path):
            folder = _id(entry.stat())
        if folder in self._entered:
            self.pass_over(path, "a link to a folder that is read already")
            return False
        self._entered.add(folder)
        return True

    def _entries(self, inner: bytes) -> list[os.DirEntry[bytes]]:
        path = self._home + b"/" + inner
        with _plain_errors(path), os.scandir(path) as entries:
            # Sorted, so that of two links to one folder always the same one counts.
            return sorted(entries, key=lambda entry: entry.name)


@contextmanager
def _plain_errors(path: bytes) -> Iterator[None]:
    """A folder that may not be entered would be a class without images: worse than no run."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{printable(os.fsdecode(path))}: cannot be listed: {error.strerror}"
        ) from error


def _id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def _is_hidden(entry: os.DirEntry[bytes]) -> bool:
    return entry.name.startswith(b".")


def _kind(entry: os.DirEntry[bytes]) -> str:
    """`folder`, `file`, or why it is neither."""
    try:
        if entry.is_dir():
            return "folder"
        if entry.is_file():  # known from the folder itself: no file is touched
            return "file"
    except OSError as error:
        return f"a link that cannot be followed ({error.strerror})"
    return "a link that leads to no file" if entry.is_symlink() else "not a regular file"
