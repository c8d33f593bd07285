"""Images in class folders: `train/<class>/…`, and `validation/` or `val/`; one file, one record.

Classes are numbered by the sorted names of their folders. Boxes come from the file beside them.
"""

import errno
import hashlib
import os
import stat
from pathlib import Path

import numpy as np

from convoy.config.user_text import printable
from convoy.data.records.boxes import FILE_NAME, BoxTable, read_boxes
from convoy.data.records.listing import SUFFIXES, Listing, class_folders, list_images
from convoy.data.records.record import (
    MAX_RECORD_BYTES,
    NO_BOXES,
    BadRecordError,
    Boxes,
    Record,
    Spot,
)
from convoy.data.records.unchanged import Look, look, opened, refuse_change, replaced
from convoy.data.source import Labels, Split
from convoy.errors import ConfigError, DataError

FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val"),
}

_MOST_NAMES = 5  # of each side, where two lists of classes differ
_UNSEEN = -1
# What the file itself is to blame for; anything else (too many open files) ends the run.
_FILE_IS_BAD = {errno.EACCES, errno.EPERM, errno.EIO}


class ImageFolder:
    """One split, in the order (class folder, file name). Made by `open_folder`."""

    def __init__(self, home: Path, listing: Listing, boxes: BoxTable | None) -> None:
        self.class_names = tuple(printable(os.fsdecode(name)) for name in listing.classes)
        self.passed_over = listing.passed_over
        self._home = home
        self._listing = listing
        self._boxes = boxes
        # Of each file, when it was read first: a later difference means another image.
        self._bytes = np.full(len(listing), _UNSEEN, np.int64)
        self._mtime_ns = np.zeros(len(listing), np.int64)

    @property
    def labels(self) -> Labels:
        return self._listing.labels

    def __len__(self) -> int:
        return len(self._listing)

    def spot(self, number: int) -> Spot:
        return Spot(printable(os.fsdecode(self._path(number))))

    def read(self, number: int) -> Record:
        return Record(self._encoded(number), self.boxes(number))

    def boxes(self, number: int) -> Boxes:
        """Of one image, without a look at it."""
        if self._boxes is None:
            return NO_BOXES
        return self._boxes.of(self._name(number))

    def file_name(self, number: int) -> str:
        return os.fsdecode(self._name(number))

    def stamp(self) -> str:
        """What tells these files from others in their place; every one is looked at."""
        digest = hashlib.sha256(b"\0".join(self._listing.classes))
        for number in range(len(self)):
            path = self._path(number)
            try:
                found = os.stat(path)  # noqa: PTH116 - of a million files
            except OSError as error:
                raise DataError(f"{self.spot(number)}: {error.strerror}") from error
            digest.update(b"%s\0%d %d\n" % (path, found.st_size, found.st_mtime_ns))
        return digest.hexdigest()

    def _name(self, number: int) -> bytes:
        return self._listing.name(number).rpartition(b"/")[2]

    def _path(self, number: int) -> bytes:
        return os.fsencode(self._home) + b"/" + self._listing.path(number)

    def _encoded(self, number: int) -> bytes:
        try:
            with opened(self._path(number)) as file:
                size = self._checked_size(number, file)
                encoded = os.pread(file, size, 0)
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            if error.errno in _FILE_IS_BAD:
                raise BadRecordError(self.spot(number), reason) from error
            raise DataError(f"{self.spot(number)}: {reason}") from error
        if len(encoded) < size:
            raise replaced(str(self.spot(number)), f"{size} bytes at first, now {len(encoded)}")
        return encoded

    def _checked_size(self, number: int, file: int) -> int:
        """The size of a file that is the one of the first look, and no larger than may be."""
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise BadRecordError(self.spot(number), "not a regular file")
        now = look(file)
        self._refuse_change(number, now)
        if not 0 < now.bytes <= MAX_RECORD_BYTES:
            raise BadRecordError(
                self.spot(number), f"{now.bytes} bytes, an image has 1 … {MAX_RECORD_BYTES}"
            )
        return now.bytes

    def _refuse_change(self, number: int, now: Look) -> None:
        first = Look(int(self._bytes[number]), int(self._mtime_ns[number]))
        if first.bytes == _UNSEEN:
            self._mtime_ns[number] = now.mtime_ns
            self._bytes[number] = now.bytes  # last: it is the mark that both are known
        elif first != now:  # the name is only made where it is needed
            refuse_change(str(self.spot(number)), first, now)


def open_folder(root: Path, split: Split) -> ImageFolder:
    """One split of a folder with images in class folders."""
    homes = split_folders(root)
    if split not in homes:
        wanted = " or ".join(f"{name}/" for name in FOLDERS[split])
        raise ConfigError(
            f"{root}: no folder {wanted} in it; the images of that split are looked for there, "
            "in one folder a class"
        )
    _refuse_different_classes(homes)
    listing = list_images(homes[split])
    _refuse_too_little(homes[split], listing)
    table = root / FILE_NAME
    return ImageFolder(homes[split], listing, read_boxes(table) if table.exists() else None)


def split_folders(root: Path) -> dict[Split, Path]:
    """Where the splits of a data set in class folders lie, as far as they are there."""
    if not root.is_dir():
        raise ConfigError(
            f"{root}: no such folder; name the one with the images in --data-dir or in the "
            "environment variable DATA_DIR"
        )
    homes: dict[Split, Path] = {}
    for split, names in FOLDERS.items():
        found = [root / name for name in names if (root / name).is_dir()]
        if len(found) > 1 and not found[0].samefile(found[1]):
            raise ConfigError(
                f"{root}: both {found[0].name}/ and {found[1].name}/ are there; keep one of them"
            )
        if found:
            homes[split] = found[0]
    return homes


def _refuse_too_little(home: Path, listing: Listing) -> None:
    classes = len(listing.classes)
    if len(listing) == 0:
        raise ConfigError(
            f"{home}: {classes} class folders and no image in them; names of images end in "
            f"{', '.join(suffix.decode() for suffix in SUFFIXES)}"
        )
    if classes == 1:
        raise ConfigError(
            f"{home}: one class folder only ({_names(set(listing.classes))}); a classifier needs "
            "two or more"
        )


def _refuse_different_classes(homes: dict[Split, Path]) -> None:
    """Labels are numbers of folders: one folder more would shift all behind it."""
    classes = {split: set(class_folders(home)) for split, home in homes.items()}
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
