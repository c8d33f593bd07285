"""A conversion as data: what is requested, the splits of the source, the parts of the target
(a shard or a class folder each), which records they get, and the names of image files.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convoy.data.images.decode import ImageError, read_header
from convoy.data.progress import Notice, ProgressCallbacks
from convoy.data.records.folder import SUFFIXES
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.manifest import refuse_unfinished
from convoy.data.records.open import (
    DataLocation,
    StoredRecords,
    find_data,
    open_location,
    splits_in,
)
from convoy.data.records.record import UNKNOWN, Form, PackedNames, Sample
from convoy.data.records.tar import shard_name
from convoy.data.source import Ids, Labels, Split
from convoy.errors import ConfigError, DataError
from convoy.rng import key, permutation
from convoy.text import shown

CLASS_WORDS = "LOC_synset_mapping.txt"  # a line a class: its name, then what that means

_MOST_BYTES = 2**24


@dataclass(frozen=True)
class ConversionSource:
    """All splits that are converted together."""

    locations: Mapping[Split, DataLocation]
    splits: Mapping[Split, StoredRecords]
    class_names: tuple[str, ...]
    class_words: Mapping[str, str]

    @property
    def words_file(self) -> Path:
        return next(iter(self.locations.values())).folder / CLASS_WORDS

    def sample(self, split: Split, number: int) -> Sample:
        """One image with everything that belongs to it; its header is checked."""
        records = self.splits[split]
        image = records.read(number)
        encoded = bytes(image.encoded)
        try:
            header = read_header(encoded)
        except ImageError as error:
            raise BadRecordError(records.location(number), str(error)) from error
        label = int(records.labels[number])
        filename, text = records.words(number)
        return Sample(
            encoded=encoded,
            label=label,
            synset=self.class_names[label],
            filename=filename,
            width=header.width,
            height=header.height,
            text=text or self.class_words.get(self.class_names[label], ""),
            boxes=image.boxes,
        )

    def stamp(self) -> str:
        parts = [(split, records.stamp()) for split, records in self.splits.items()]
        return hashlib.sha256(repr((parts, self.class_names)).encode()).hexdigest()


def open_conversion_source(
    folder: Path, split: Split | None, callbacks: ProgressCallbacks
) -> ConversionSource:
    """One split, or all that are there."""
    names = [split] if split else splits_in(folder)
    locations = {name: find_data(folder, name) for name in names}
    for location in locations.values():
        refuse_unfinished(location.folder)
    splits = {
        name: open_location(location, name, callbacks.notice, callbacks.reading)
        for name, location in locations.items()
    }
    return ConversionSource(
        locations=locations,
        splits=splits,
        class_names=_joined([records.class_names for records in splits.values()]),
        class_words=_read_words(locations[names[0]].folder / CLASS_WORDS),
    )


def _joined(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Shards of one split may lack a class, or its name; those of another may have it."""
    joined = []
    for label in range(max(map(len, names))):
        unknown = f"class {label}"
        known = [those[label] for those in names if label < len(those)]
        joined.append(next((name for name in known if name != unknown), unknown))
    return tuple(joined)


def _read_words(path: Path) -> dict[str, str]:
    """`n01530575 brambling, Fringilla montifringilla`, if there is such a file."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    lines = (line.strip().partition(" ") for line in text.splitlines())
    return {name: words for name, _, words in lines if name}


MOST_SHARDS = 50_000  # of a split: a manifest lists them all, and names have five digits

# No path, nothing hidden, no control character, and no comma or space that a row would lose.
_SAFE = re.compile(rb"(?![.\s]|\xef\xbb\xbf)[^\x00-\x1f/,\x7f]{1,255}(?<!\s)")


@dataclass(frozen=True)
class Sharding:
    """How many shards a split gets, or how many records a shard."""

    counts: tuple[int, ...] = ()  # of the training and the validation split
    records: int = 1024  # if no counts are given; the reference's tar shards have so many

    def starts(self, split: Split, records: int) -> list[int]:
        """Where each shard begins; sizes differ by one at most, or only the last is smaller."""
        if self.counts:
            count = min(records, self.counts[0 if split == "train" else -1])
            starts = [records * shard // count for shard in range(count)]
        else:
            starts = list(range(0, records, self.records))
        if len(starts) > MOST_SHARDS:
            raise ConfigError(
                f"{len(starts):,} shards for {records:,} records of the {split} split; at most "
                f"{MOST_SHARDS:,} are written: use larger ones"
            )
        return starts


@dataclass(frozen=True)
class ConversionRequest:
    """One conversion, as the user asked for it."""

    source: Path
    target: Path
    form: Form
    split: Split | None = None  # None: all that are there
    sharding: Sharding = Sharding()
    workers: int = 1
    shuffle: int | None = None  # the seed of another order
    most_bad: int | None = None  # records that may be left out; None: a bad one is an error


@dataclass(frozen=True, eq=False)
class TargetPart:
    """A shard or a class folder to write."""

    name: str  # below the target
    split: Split
    numbers: Ids  # of its records in the source
    first: int  # how many records of the split come before it


@dataclass(frozen=True)
class ConversionPlan:
    """All parts of the target, and for class folders the names of their files."""

    parts: tuple[TargetPart, ...]
    names: Mapping[Split, tuple[Ids, PackedNames]]  # records of the source, and their file names

    def identity(self, request: ConversionRequest, source: ConversionSource) -> dict[str, Any]:
        """What must be equal for a conversion to be continued."""
        digests = {split: hashlib.sha256() for split in source.splits}
        for part in self.parts:
            digests[part.split].update(os.fsencode(part.name) + b"\0" + part.numbers.tobytes())
        return {
            "form": request.form,
            "shuffle": request.shuffle,
            "source": {"folder": str(request.source.resolve()), "sha256": source.stamp()},
            "splits": {split: digest.hexdigest() for split, digest in digests.items()},
        }


def plan_conversion(
    request: ConversionRequest, source: ConversionSource, notice: Notice
) -> ConversionPlan:
    orders = {split: _order(request, source, split, notice) for split in source.splits}
    if request.form != "folder":
        shards = (
            shard_parts(split, order, request.sharding, request.form)
            for split, order in orders.items()
        )
        return ConversionPlan(tuple(chain.from_iterable(shards)), {})
    folders, file_names = folder_names(source.class_names, notice), FileNames(notice)
    parts: list[TargetPart] = []
    names = {}
    for split, order in orders.items():
        records = source.splits[split]
        parts += class_parts(split, order, records.labels, folders)
        names[split] = order, file_names.of(split, records, order)
    return ConversionPlan(tuple(parts), names)


def _order(
    request: ConversionRequest, source: ConversionSource, split: Split, notice: Notice
) -> Ids:
    labels = source.splits[split].labels
    numbers = usable(labels, request.shuffle)
    if len(numbers) == 0:
        folder = source.locations[split].folder
        raise DataError(f"{folder}: the {split} split has no record that can be used")
    if request.form != "folder":
        return numbers
    by_class = numbers[np.argsort(labels[numbers], kind="stable")]
    if not np.array_equal(by_class, numbers):
        notice(
            f"class folders hold one class after the other, the {split} split here does not: only "
            "within each class its order stays"
        )
    return by_class


def usable(labels: Labels, shuffle: int | None) -> Ids:
    """The numbers of all records that are not known to be bad, in the order of the target."""
    numbers = np.flatnonzero(labels != UNKNOWN)
    if shuffle is None:
        return numbers
    return numbers[permutation(key(shuffle, "conversion"), len(numbers))]


def shard_parts(split: Split, numbers: Ids, sharding: Sharding, form: Form) -> Iterator[TargetPart]:
    """`train-00000-of-01024` or `train-000000.tar`"""
    starts = sharding.starts(split, len(numbers))
    for shard, (start, end) in enumerate(pairwise([*starts, len(numbers)])):
        name = f"{split}-{shard:05}-of-{len(starts):05}"
        if form == "webdataset":
            name = shard_name(split, shard)
        yield TargetPart(name, split, numbers[start:end], start)


def class_parts(
    split: Split, numbers: Ids, labels: Labels, folders: Sequence[str]
) -> Iterator[TargetPart]:
    """`train/n01530575`, also if the split has none of that class: so each keeps its number."""
    first = np.searchsorted(labels[numbers], np.arange(len(folders) + 1)).tolist()
    for folder, (start, end) in zip(folders, pairwise(first), strict=True):
        yield TargetPart(f"{split}/{folder}", split, numbers[start:end], start)


class FileNames:
    """Chooses the names of the images, split after split."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._taken: npt.NDArray[np.uint64] = np.empty(0, ">u8")

    def of(self, split: Split, records: StoredRecords, numbers: Ids) -> PackedNames:
        """One name for each of these records, which come class after class."""
        names = PackedNames(os.fsencode(records.words(number)[0]) for number in numbers.tolist())
        hashes = (hashlib.blake2b(name, digest_size=8).digest() for name in names)
        digests = np.frombuffer(b"".join(hashes), ">u8")
        reason = _unfit(names, records.labels[numbers].tolist())
        # The table of boxes knows files by their names alone, without the folder.
        if len(np.unique(digests)) < len(digests) or np.isin(digests, self._taken).any():
            reason = reason or "a name comes twice, in two classes or splits"
        if reason is None:
            self._taken = np.concatenate([self._taken, digests])
            return names
        self._notice(f"the images of the {split} split get numbers for names: {reason}")
        return PackedNames(_numbered(split, names))


def _unfit(names: PackedNames, labels: list[int]) -> str | None:
    """Why these names cannot be kept: a folder would not list them in this order."""
    last, last_label = b"", -1
    for name, label in zip(names, labels, strict=True):
        if not _SAFE.fullmatch(name) or not name.lower().endswith(SUFFIXES):
            return f"{shown(os.fsdecode(name))} is no name for an image"
        if label == last_label and name <= last:
            return f"{shown(os.fsdecode(name))} comes behind {shown(os.fsdecode(last))}"
        last, last_label = name, label
    return None


def _numbered(split: Split, names: PackedNames) -> Iterator[bytes]:
    for number, name in enumerate(names):
        suffix = b"." + name.lower().rpartition(b".")[2]
        yield b"%s_%08d%s" % (split.encode(), number, suffix if suffix in SUFFIXES else b".JPEG")


def folder_names(class_names: Sequence[str], notice: Notice) -> tuple[str, ...]:
    """A folder a class, named so that sorting them gives the numbers of the classes again."""
    raw = [name.encode("utf-8", "replace") for name in class_names]
    safe = all(_SAFE.fullmatch(name) for name in raw) and "".join(class_names).isprintable()
    if safe and all(name < following for name, following in pairwise(raw)):
        return tuple(class_names)
    notice("the class folders get numbers for names: sorted by name they would be numbered anew")
    width = len(str(len(class_names) - 1))
    return tuple(f"{label:0{width}}" for label in range(len(class_names)))
