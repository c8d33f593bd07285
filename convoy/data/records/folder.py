"""Images in class folders: listed in a fixed order, other files with a reason; read by number.

Beside them may be a file of object boxes: `name,x1,y1,x2,y2`, as shares of width and height.
"""

import errno
import hashlib
import os
import stat
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import (
    MAX_RECORD_BYTES,
    NO_BOXES,
    Boxes,
    EncodedImage,
    FileState,
    PackedNames,
    box_problems,
    open_file,
    read_range,
    refuse_change,
    with_area,
)
from convoy.data.source import Labels, Split
from convoy.errors import ConfigError, DataError
from convoy.text import printable, shown

FILE_NAME = "imagenet_2012_bounding_boxes.csv"

_MOST_BYTES = 2**29  # the official file has about 70 MB
_MOST_PROBLEMS = 5
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BoxTable:
    """The boxes of files by name, in the order of their rows. A million rows stay compact.

    A row is found by a checksum of its name, then checked by the name.
    """

    def __init__(self, names: PackedNames, boxes: Boxes) -> None:
        keys = np.fromiter(map(zlib.crc32, names), np.uint32, len(names))
        self._order = np.argsort(keys, kind="stable").astype(np.uint32)
        self._keys = keys[self._order]
        self._names, self._boxes = names, boxes

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, name: bytes) -> Boxes:
        """All boxes of one file; none where it has no row."""
        key = np.uint32(zlib.crc32(name))
        first, end = (np.searchsorted(self._keys, key, side) for side in ("left", "right"))
        rows = [row for row in self._order[first:end].tolist() if self._names[row] == name]
        return with_area(self._boxes[rows]) if rows else NO_BOXES


def read_boxes(path: Path) -> BoxTable:
    """All rows of the file; every bad one is counted and the first ones are named."""
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigError(f"{path}: {size} bytes, at most {_MOST_BYTES} are read")
        with path.open("rb") as file:
            table, problems = _parse_rows(file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if problems:
        named = "; ".join(f"line {line}: {reason}" for line, reason in problems[:_MOST_PROBLEMS])
        more = len(problems) - _MOST_PROBLEMS
        raise ConfigError(
            f"{printable(str(path))}: {named}{f'; and {more} more' if more > 0 else ''}. Rows are "
            "file name, x1, y1, x2, y2; correct them, or train without the file"
        )
    return table


def _parse_rows(file: Iterable[bytes]) -> tuple[BoxTable, list[tuple[int, str]]]:
    """All good rows, and the bad ones by line: no row, or a box that is not inside the image."""
    names, corners = PackedNames(), array("f")
    lines = array("I")  # line numbers of the rows
    problems = []
    for line, text in enumerate(file, start=1):
        row = text.removeprefix(_BYTE_ORDER_MARK).strip()
        try:
            name, x1, y1, x2, y2 = row.split(b",")
            box = (float(x1), float(y1), float(x2), float(y2))
        except ValueError:
            if row and line > 1:  # the first may be the names of the columns
                quoted = shown(row.decode("utf-8", errors="replace"))
                problems.append((line, f"{quoted} is no name with four numbers"))
            continue
        names.append(name)
        corners.extend(box)
        lines.append(line)
    boxes = np.frombuffer(corners, np.float32).reshape(-1, 4)
    problems += [(lines[row], reason) for row, reason in box_problems(boxes)]
    return BoxTable(names, boxes.clip(0, 1)), sorted(problems)


SUFFIXES = (b".jpeg", b".jpg", b".png", b".bmp", b".gif", b".webp", b".tif", b".tiff")
SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val"),
}

_MOST_REMARKS = 1000  # about skipped files; a folder may hold a million of them
_MOST_NAMES = 5  # of each side, where two lists of classes differ
_UNSEEN = -1
# The file itself is bad; any other error (too many open files) ends the run.
_FILE_IS_BAD = {errno.EACCES, errno.EPERM, errno.EIO}


@dataclass(frozen=True)
class Listing:
    """One split: class folders sorted by name, and in each its files sorted by name."""

    classes: tuple[bytes, ...]
    labels: Labels
    names: PackedNames  # below the class folder
    passed_over: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def path(self, number: int) -> bytes:
        return self.classes[int(self.labels[number])] + b"/" + self.names[number]


def list_images(home: Path) -> Listing:
    walk = _Walk(home)
    names, counts = PackedNames(), []
    for folder in walk.classes:
        found = sorted(walk.below(folder))
        if not found:
            walk.pass_over(folder, "a class folder without images")
        for name in found:
            names.append(name)
        counts.append(len(found))
    labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return Listing(walk.classes, labels, names, walk.remarks())


class _Walk:
    """Visits every folder of a split once, whatever links there are."""

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
        more = self._passed_over - len(self._remarks)
        return (*self._remarks, *([f"and {more} more"] if more else []))

    def _enter_classes(self) -> Iterator[bytes]:
        for entry in self._entries(b""):
            kind = _kind(entry)
            if kind != "folder":
                reason = kind if kind == "hidden" else "not in a class folder"
                self.pass_over(entry.name, reason)
            elif self._enter(entry, entry.name):
                yield entry.name

    def below(self, folder: bytes) -> Iterator[bytes]:
        """The images of a class folder and of all folders in it, in no order."""
        pending = [folder + b"/"]
        while pending:
            inner = pending.pop()
            for entry in self._entries(inner):
                path = inner + entry.name
                kind = _kind(entry)
                if kind == "folder":
                    if self._enter(entry, path):
                        pending.append(path + b"/")
                elif kind != "file":
                    self.pass_over(path, kind)
                elif not entry.name.lower().endswith(SUFFIXES):
                    self.pass_over(path, "not named like an image")
                else:
                    yield path[len(folder) + 1 :]

    def _enter(self, entry: os.DirEntry[bytes], path: bytes) -> bool:
        with _listing_errors(self._home + b"/" + path):
            folder = _id(entry.stat())
        if folder in self._entered:
            self.pass_over(path, "a link to a folder that is read already")
            return False
        self._entered.add(folder)
        return True

    def _entries(self, inner: bytes) -> list[os.DirEntry[bytes]]:
        path = self._home + b"/" + inner
        with _listing_errors(path), os.scandir(path) as entries:
            # Sorted, so that of two links to one folder always the same one counts.
            return sorted(entries, key=lambda entry: entry.name)


@contextmanager
def _listing_errors(path: bytes) -> Iterator[None]:
    """A folder that may not be entered would be a class without images: worse than no run."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{printable(os.fsdecode(path))}: cannot be listed: {error.strerror}"
        ) from error


def _id(status: os.stat_result) -> tuple[int, int]:
    """The same for all paths to one folder."""
    return status.st_dev, status.st_ino


def _kind(entry: os.DirEntry[bytes]) -> str:
    """`folder`, `file`, or why it is neither."""
    if entry.name.startswith(b"."):
        return "hidden"
    try:
        if entry.is_dir():
            return "folder"
        if entry.is_file():  # known from the folder itself: no file is touched
            return "file"
    except OSError as error:
        return f"a link that cannot be followed ({error.strerror})"
    return "a link that leads to no file" if entry.is_symlink() else "not a regular file"


class ImageFolder:
    """One split, in the order (class folder, file name). Made by `open_folder`."""

    def __init__(self, home: Path, listing: Listing, boxes: BoxTable | None) -> None:
        self.class_names = tuple(printable(os.fsdecode(name)) for name in listing.classes)
        self.labels = listing.labels
        self.passed_over = listing.passed_over
        self._home = home
        self._listing = listing
        self._boxes = boxes
        # Of each file, when it was read first: a later difference means another image.
        self._bytes = np.full(len(listing), _UNSEEN, np.int64)
        self._mtime_ns = np.zeros(len(listing), np.int64)

    def __len__(self) -> int:
        return len(self._listing)

    def location(self, number: int) -> RecordLocation:
        return RecordLocation(printable(os.fsdecode(self._path(number))))

    def read(self, number: int) -> EncodedImage:
        path, locate = self._path(number), partial(self.location, number)
        with open_file(path, locate, _FILE_IS_BAD) as file:
            size = self._checked_size(number, file)
            return EncodedImage(read_range(file, 0, size, str(locate())), self.boxes(number))

    def boxes(self, number: int) -> Boxes:
        return NO_BOXES if self._boxes is None else self._boxes.of(self._name(number))

    def words(self, number: int) -> tuple[str, str]:
        """The name of the image file; the class in words is unknown."""
        return os.fsdecode(self._name(number)), ""

    def stamp(self) -> str:
        """Identifies the data as it is now, from the state of every file."""
        digest = hashlib.sha256(b"\0".join(self._listing.classes))
        for number in range(len(self)):
            path = self._path(number)
            try:
                found = os.stat(path)  # noqa: PTH116 - of a million files
            except OSError as error:
                raise DataError(f"{self.location(number)}: {error.strerror}") from error
            digest.update(b"%s\0%d %d\n" % (path, found.st_size, found.st_mtime_ns))
        return digest.hexdigest()

    def _name(self, number: int) -> bytes:
        return self._listing.names[number].rpartition(b"/")[2]

    def _path(self, number: int) -> bytes:
        return os.fsencode(self._home) + b"/" + self._listing.path(number)

    def _checked_size(self, number: int, file: int) -> int:
        """The size of a regular file that has not changed since it was first read."""
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise BadRecordError(self.location(number), "not a regular file")
        now = FileState.of(file)
        first = FileState(int(self._bytes[number]), int(self._mtime_ns[number]))
        if first.bytes == _UNSEEN:
            self._mtime_ns[number] = now.mtime_ns
            self._bytes[number] = now.bytes  # last: it shows that both are known
        elif first != now:
            refuse_change(str(self.location(number)), first, now)
        if not 0 < now.bytes <= MAX_RECORD_BYTES:
            raise BadRecordError(
                self.location(number), f"{now.bytes} bytes, an image has 1 … {MAX_RECORD_BYTES}"
            )
        return now.bytes


def open_folder(root: Path, split: Split) -> ImageFolder:
    homes = _split_folders(root)
    if split not in homes:
        wanted = " or ".join(f"{name}/" for name in SPLIT_NAMES[split])
        raise ConfigError(
            f"{root}: no folder {wanted} in it; the images of that split are looked for there, "
            "in one folder a class"
        )
    _refuse_different_classes(homes)
    home, table = homes[split], root / FILE_NAME
    listing = list_images(home)
    if len(listing) == 0:
        raise ConfigError(
            f"{home}: {len(listing.classes)} class folders and no image in them; names of images "
            f"end in {', '.join(suffix.decode() for suffix in SUFFIXES)}"
        )
    if len(listing.classes) == 1:
        raise ConfigError(
            f"{home}: one class folder only ({_names(set(listing.classes))}); a classifier needs "
            "two or more"
        )
    return ImageFolder(home, listing, read_boxes(table) if table.exists() else None)


def _split_folders(root: Path) -> dict[Split, Path]:
    if not root.is_dir():
        raise ConfigError(
            f"{root}: no such folder; name the one with the images in --data-dir or in the "
            "environment variable DATA_DIR"
        )
    homes: dict[Split, Path] = {}
    for split, names in SPLIT_NAMES.items():
        found = [root / name for name in names if (root / name).is_dir()]
        if len(found) > 1 and not found[0].samefile(found[1]):
            raise ConfigError(
                f"{root}: both {found[0].name}/ and {found[1].name}/ are there; keep one of them"
            )
        if found:
            homes[split] = found[0]
    return homes


def _refuse_different_classes(homes: dict[Split, Path]) -> None:
    """Labels are numbers of folders: one folder more would shift all after it."""
    classes = {split: set(_Walk(home).classes) for split, home in homes.items()}
    for split, names in classes.items():
        if not names:
            raise ConfigError(
                f"{homes[split]}: no class folders in it; put its images into one folder a class"
            )
    every, shared = set.union(*classes.values()), set.intersection(*classes.values())
    only = [
        f"only in {homes[split].name}: {_names(names - shared)}"
        for split, names in classes.items()
        if names - shared
    ]
    if only:
        raise ConfigError(
            f"{homes['train'].parent}: {len(every - shared)} class folders are in one split only: "
            f"{'; '.join(only)}. Each class needs a folder in both"
        )


def _names(names: set[bytes]) -> str:
    listed = [printable(os.fsdecode(name)) for name in sorted(names)[:_MOST_NAMES]]
    more = len(names) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")
