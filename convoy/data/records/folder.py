"""Images in class folders: listed in a fixed order and read by index.

The class folders are in train/ and validation/, or beside each other: then a share of the images
of each class is the validation split.

A file of object boxes may be beside them: `name,x1,y1,x2,y2`, as fractions of width and height.
"""

import errno
import hashlib
import os
import stat
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from convoy.config.sections.data import DEFAULT_VALIDATION_SHARE
from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import (
    MAX_RECORD_BYTES,
    NO_BOXES,
    Boxes,
    EncodedImage,
    PackedNames,
    check_unchanged,
    drop_empty_boxes,
    invalid_boxes,
    open_file,
    read_range,
    reading_errors,
)
from convoy.data.source import Labels, Split
from convoy.errors import ConfigError
from convoy.text import pluralize, printable, quote_shortened

BOX_FILE_NAME = "imagenet_2012_bounding_boxes.csv"

_MAX_BYTES = 2**29  # the official file has about 70 MB
_MAX_PROBLEMS = 5
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BoxTable:
    """Boxes by file name, in the order of their rows, compact for a million rows.

    Rows are looked up by a checksum of the name, then compared by name.
    """

    def __init__(self, names: PackedNames, boxes: Boxes) -> None:
        keys = np.fromiter(map(zlib.crc32, names), np.uint32, len(names))
        self._order = np.argsort(keys, kind="stable").astype(np.uint32)
        self._keys = keys[self._order]
        self.names, self._boxes = names, boxes

    def boxes_for(self, name: bytes) -> Boxes:
        key = np.uint32(zlib.crc32(name))
        first, end = (np.searchsorted(self._keys, key, side) for side in ("left", "right"))
        rows = [row for row in self._order[first:end].tolist() if self.names[row] == name]
        return drop_empty_boxes(self._boxes[rows]) if rows else NO_BOXES


def read_boxes(path: Path) -> BoxTable:
    """Read all rows; the error counts every bad row and lists the first ones."""
    with reading_errors(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_BYTES:
            raise ConfigError(f"{path}: {size} bytes; the limit is {_MAX_BYTES}")
        table, problems = _parse_rows(file)
    if problems:
        listed = "; ".join(f"line {line}: {reason}" for line, reason in problems[:_MAX_PROBLEMS])
        more = len(problems) - _MAX_PROBLEMS
        raise ConfigError(
            f"{printable(str(path))}: {listed}{f'; and {more} more' if more > 0 else ''}. Each "
            "row is file name, x1, y1, x2, y2; correct the rows, or remove the file to train "
            "without boxes"
        )
    return table


def _parse_rows(file: Iterable[bytes]) -> tuple[BoxTable, list[tuple[int, str]]]:
    """Parse the good rows, and list the bad ones by line: malformed, or outside the image."""
    names, corners = PackedNames(), array("f")
    lines = array("I")  # line numbers of the rows
    problems = []
    for line, text in enumerate(file, start=1):
        row = text.removeprefix(_BYTE_ORDER_MARK).strip()
        try:
            name, x1, y1, x2, y2 = row.split(b",")
            box = (float(x1), float(y1), float(x2), float(y2))
        except ValueError:
            if row and line > 1:  # the first line may be a header
                quoted = quote_shortened(row.decode("utf-8", errors="replace"))
                problems.append((line, f"{quoted} is not a name with four numbers"))
            continue
        names.append(name)
        corners.extend(box)
        lines.append(line)
    boxes = np.frombuffer(corners, np.float32).reshape(-1, 4)
    problems += [(lines[row], reason) for row, reason in invalid_boxes(boxes)]
    return BoxTable(names, boxes.clip(0, 1)), sorted(problems)


IMAGE_SUFFIXES = (b".jpeg", b".jpg", b".png", b".bmp", b".gif", b".webp", b".tif", b".tiff")
SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val"),
}

_MAX_SKIPPED_LISTED = 1000  # a folder may contain a million other files
_MAX_SHOWN_NAMES = 5  # of each split, if their classes differ
_NOT_READ_YET = -1
# The file itself is bad; any other error (such as too many open files) ends the run.
_BAD_FILE_ERRNOS = {errno.EACCES, errno.EPERM, errno.EIO}


class _FolderWalk:
    """Visit every folder of a split once, whatever symbolic links there are."""

    def __init__(self, split_folder: Path) -> None:
        self._split_folder = os.fsencode(split_folder)
        self._messages: list[str] = []
        self._skipped = 0
        # Links back to these folders are loops.
        self._entered = {_id(split_folder.stat()), _id(split_folder.parent.stat())}
        self.classes = tuple(sorted(self._class_folders()))

    def skip(self, path: bytes, reason: str) -> None:
        self._skipped += 1
        if len(self._messages) < _MAX_SKIPPED_LISTED:
            self._messages.append(f"{printable(os.fsdecode(path))}: {reason}")

    def skipped_files(self) -> tuple[str, ...]:
        more = self._skipped - len(self._messages)
        return (*self._messages, *([f"and {more} more"] if more else []))

    def _class_folders(self) -> Iterator[bytes]:
        for entry in self._entries(b""):
            entry_type = _entry_type(entry)
            if entry_type != "folder":
                reason = entry_type if entry_type == "hidden" else "not in a class folder"
                self.skip(entry.name, reason)
            elif self._enter(entry, entry.name):
                yield entry.name

    def images_below(self, folder: bytes) -> Iterator[bytes]:
        """Yield the images of a class folder and of all folders in it, unsorted."""
        pending = [folder + b"/"]
        while pending:
            inner = pending.pop()
            for entry in self._entries(inner):
                path = inner + entry.name
                entry_type = _entry_type(entry)
                if entry_type == "folder":
                    if self._enter(entry, path):
                        pending.append(path + b"/")
                elif entry_type != "file":
                    self.skip(path, entry_type)
                elif not entry.name.lower().endswith(IMAGE_SUFFIXES):
                    self.skip(path, "not an image extension")
                else:
                    yield path[len(folder) + 1 :]

    def _enter(self, entry: os.DirEntry[bytes], path: bytes) -> bool:
        with reading_errors(self._split_folder + b"/" + path):
            folder = _id(entry.stat())
        if folder in self._entered:
            self.skip(path, "a link to a folder that is already included")
            return False
        self._entered.add(folder)
        return True

    def _entries(self, inner: bytes) -> list[os.DirEntry[bytes]]:
        path = self._split_folder + b"/" + inner
        # An unreadable folder would silently become a class without images.
        with reading_errors(path, "listed"), os.scandir(path) as entries:
            # Sorted, so that of two links to one folder always the same one is followed.
            return sorted(entries, key=lambda entry: entry.name)


def _id(status: os.stat_result) -> tuple[int, int]:
    """Return an id that is the same for all paths to one folder."""
    return status.st_dev, status.st_ino


def _entry_type(entry: os.DirEntry[bytes]) -> str:
    """Return `folder`, `file`, or the reason why the entry is neither."""
    if entry.name.startswith(b"."):
        return "hidden"
    try:
        if entry.is_dir():
            return "folder"
        if entry.is_file():  # known from the directory listing, without a system call per file
            return "file"
    except OSError as error:
        return f"a link that cannot be followed ({error.strerror})"
    return "a broken link" if entry.is_symlink() else "not a regular file"


@dataclass(frozen=True)
class SplitByShare:
    """Divides the images of each class into splits.

    The order depends on the file names only: an image that is added or removed moves few others.
    """

    split: Split
    share: float

    def select(self, images: list[bytes]) -> list[bytes]:
        """The images of the split; each class with two images has one in both splits."""
        count = min(max(1, round(self.share * len(images))), len(images) - 1)
        by_hash = sorted(images, key=lambda name: hashlib.sha256(name).digest())
        chosen = by_hash[:count] if self.split == "validation" else by_hash[count:]
        return sorted(chosen)


class ImageFolder:
    """One split, in the order (class folder, file name). Created by `open_folder`."""

    def __init__(
        self,
        split_folder: Path,
        boxes: BoxTable | None = None,
        part: SplitByShare | None = None,
    ) -> None:
        """`part` is the part of the images to use, if the folder has no splits."""
        walk = _FolderWalk(split_folder)
        classes: list[bytes] = []
        counts: list[int] = []
        self._names = PackedNames()  # of files in the class folders
        for folder in walk.classes:
            images = sorted(walk.images_below(folder))
            if not images:
                walk.skip(folder, "a class folder without images")
                if part is not None:
                    continue  # any folder may be here
            for name in images if part is None else part.select(images):
                self._names.append(name)
            classes.append(folder)
            counts.append(len(self._names) - sum(counts))
        self._classes = tuple(classes)
        self.class_names = tuple(printable(os.fsdecode(name)) for name in classes)
        self.labels: Labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self.skipped_files = walk.skipped_files()
        self.part = part
        self._split_folder = split_folder
        self._boxes = boxes
        # Size and time of each file when it was first read: a later change means a different image.
        self._bytes = np.full(len(self), _NOT_READ_YET, np.int64)
        self._mtime_ns = np.zeros(len(self), np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def location(self, index: int) -> RecordLocation:
        return RecordLocation(printable(os.fsdecode(self._path(index))))

    def read(self, index: int) -> EncodedImage:
        path, locate = self._path(index), partial(self.location, index)
        with open_file(path, locate, _BAD_FILE_ERRNOS) as file:
            size = self._check_and_get_size(index, file)
            return EncodedImage(read_range(file, 0, size, str(locate())), self.boxes(index))

    def boxes(self, index: int) -> Boxes:
        return NO_BOXES if self._boxes is None else self._boxes.boxes_for(self._name(index))

    def filename_and_text(self, index: int) -> tuple[str, str]:
        """Return the name of the image file; the description of the class is unknown."""
        return os.fsdecode(self._name(index)), ""

    def fingerprint(self) -> str:
        """Identify the current data by name, size and modification time of every file."""
        digest = hashlib.sha256(b"\0".join(self._classes))
        for index in range(len(self)):
            path = self._path(index)
            with reading_errors(path):
                status = os.stat(path)  # noqa: PTH116 - fast for a million files
            digest.update(b"%s\0%d %d\n" % (path, status.st_size, status.st_mtime_ns))
        return digest.hexdigest()

    def _name(self, index: int) -> bytes:
        return self._names[index].rpartition(b"/")[2]

    def _path(self, index: int) -> bytes:
        folder = self._classes[int(self.labels[index])]
        return b"/".join((os.fsencode(self._split_folder), folder, self._names[index]))

    def _check_and_get_size(self, index: int, file: int) -> int:
        """Return the size of a regular file that has not changed since it was first read."""
        now, size = os.fstat(file), int(self._bytes[index])
        if not stat.S_ISREG(now.st_mode):
            raise BadRecordError(self.location(index), "not a regular file")
        if size == _NOT_READ_YET:
            self._mtime_ns[index] = now.st_mtime_ns
            self._bytes[index] = size = now.st_size  # last: marks both as known
        else:
            check_unchanged(str(self.location(index)), size, int(self._mtime_ns[index]), now)
        if not 0 < size <= MAX_RECORD_BYTES:
            reason = f"{size} bytes; an image has 1 … {MAX_RECORD_BYTES}"
            raise BadRecordError(self.location(index), reason)
        return size


def is_flat(root: Path) -> bool:
    """Whether at least two class folders with images are directly in the folder."""
    if _split_folders(root):
        return False
    walk = _FolderWalk(root)
    classes = (name for name in walk.classes if any(walk.images_below(name)))
    return len(list(islice(classes, 2))) == 2


def open_folder(
    root: Path, split: Split, validation_share: float = DEFAULT_VALIDATION_SHARE
) -> ImageFolder:
    """Open a split; `validation_share` applies if the class folders are directly in `root`."""
    folders = _split_folders(root)
    part = None
    if not folders and is_flat(root):
        folders = {"train": root, "validation": root}
        part = SplitByShare(split, validation_share)
    if split not in folders:
        names = " or ".join(f"{name}/" for name in SPLIT_NAMES[split])
        raise ConfigError(
            f"{root}: no folder {names} in it; the images of the {split} split belong there, in "
            "one folder per class"
        )
    _check_same_classes(folders)
    folder, box_file = folders[split], root / BOX_FILE_NAME
    images = ImageFolder(folder, read_boxes(box_file) if box_file.exists() else None, part)
    if len(images) == 0:
        raise ConfigError(
            f"{folder}: no images in its {pluralize(len(images.class_names), 'class folder')}; "
            f"image files end in {', '.join(suffix.decode() for suffix in IMAGE_SUFFIXES)}"
        )
    if len(images.class_names) == 1:
        raise ConfigError(
            f"{folder}: only one class folder ({images.class_names[0]}); a classifier needs at "
            "least two"
        )
    return images


def _split_folders(root: Path) -> dict[Split, Path]:
    folders: dict[Split, Path] = {}
    for split, names in SPLIT_NAMES.items():
        existing = [root / name for name in names if (root / name).is_dir()]
        if len(existing) > 1 and not existing[0].samefile(existing[1]):
            raise ConfigError(
                f"{root}: both {existing[0].name}/ and {existing[1].name}/ exist; keep one of them"
            )
        if existing:
            folders[split] = existing[0]
    return folders


def _check_same_classes(folders: dict[Split, Path]) -> None:
    """Require equal classes: labels are positions of folders, and one more would shift the rest."""
    classes = {split: set(_FolderWalk(folder).classes) for split, folder in folders.items()}
    for split, names in classes.items():
        if not names:
            raise ConfigError(
                f"{folders[split]}: no class folders in it; put its images into one folder per "
                "class"
            )
    union, shared = set.union(*classes.values()), set.intersection(*classes.values())
    differences = [
        f"only in {folders[split].name}: {_join_names(names - shared)}"
        for split, names in classes.items()
        if names - shared
    ]
    if differences:
        raise ConfigError(
            f"{folders['train'].parent}: the splits differ in "
            f"{pluralize(len(union - shared), 'class folder')}: {'; '.join(differences)}. Every "
            "class needs a folder in both splits"
        )


def _join_names(names: set[bytes]) -> str:
    listed = [printable(os.fsdecode(name)) for name in sorted(names)[:_MAX_SHOWN_NAMES]]
    more = len(names) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")
