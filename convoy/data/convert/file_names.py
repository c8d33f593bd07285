"""Names of class folders and of the images in them: those of the source where the order allows.

A folder is read in the order of its names. So names are kept only if they are in order, fit for
a file system and for a row of the table of boxes, and none comes twice; else all are numbered.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from convoy.config.user_text import shown
from convoy.data.records.listing import SUFFIXES
from convoy.data.records.names import Names
from convoy.data.records.opening import Stored
from convoy.data.source import Ids, Split

Digests = npt.NDArray[np.uint64]

_NO_DIGESTS = np.empty(0, np.uint64)
# No path, nothing hidden, no control character, and no comma or space that a row would lose.
_SAFE = re.compile(rb"(?![.\s]|\xef\xbb\xbf)[^\x00-\x1f/,\x7f]{1,255}(?<!\s)")


class FileNames:
    """Chooses the names of the images, split after split."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._taken = _NO_DIGESTS

    def of(self, split: Split, records: Stored, numbers: Ids) -> Names:
        """One name for each of these records, which come class after class."""
        names = Names(records.file_name(number) for number in numbers.tolist())
        digests = np.fromiter(map(_digest, names), np.uint64, len(names))
        reason = self._misfit(names, records.labels[numbers].tolist(), digests)
        if reason is None:
            self._taken = np.concatenate([self._taken, digests])
            return names
        self._notice(f"the images of the {split} split get numbers for names: {reason}")
        return Names(_numbered(split, names))

    def _misfit(self, names: Names, labels: list[int], digests: Digests) -> str | None:
        """Why these names cannot be kept."""
        last, last_label = b"", -1
        for text, label in zip(names, labels, strict=True):
            name = os.fsencode(text)
            if not _SAFE.fullmatch(name) or not name.lower().endswith(SUFFIXES):
                return f"{shown(text)} is no name for an image"
            if label == last_label and name <= last:
                return f"{shown(text)} comes behind {shown(os.fsdecode(last))}"
            last, last_label = name, label
        # The table of boxes knows files by their names alone, without the folder.
        if len(np.unique(digests)) < len(digests) or np.isin(digests, self._taken).any():
            return "a name comes twice, in two classes or splits"
        return None


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest())


def _numbered(split: Split, names: Names) -> Iterator[str]:
    for number, name in enumerate(names):
        suffix = os.fsencode(name).lower().rpartition(b".")[2]
        known = b"." + suffix in SUFFIXES
        yield f"{split}_{number:08}.{suffix.decode() if known else 'JPEG'}"


def folder_names(class_names: Sequence[str], notice: Callable[[str], None]) -> tuple[str, ...]:
    """A folder a class, so named that sorting them gives the numbers of the classes again."""
    raw = [name.encode("utf-8", "replace") for name in class_names]
    safe = all(_SAFE.fullmatch(name) for name in raw) and "".join(class_names).isprintable()
    if safe and all(one < other for one, other in pairwise(raw)):
        return tuple(class_names)
    notice("the class folders get numbers for names: sorted by name they would be numbered anew")
    width = len(str(len(class_names) - 1))
    return tuple(f"{label:0{width}}" for label in range(len(class_names)))
