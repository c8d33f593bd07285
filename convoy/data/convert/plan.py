"""The plan of a conversion: request, source splits, and target parts with their records.

A part is a shard or a class folder; for class folders the plan includes the image file names.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convoy.data.images.decode import read_header
from convoy.data.progress import Notice, ProgressCallbacks
from convoy.data.records.folder import IMAGE_SUFFIXES
from convoy.data.records.manifest import check_finished
from convoy.data.records.open import (
    DataLocation,
    StoredRecords,
    available_splits,
    find_split,
    open_location,
)
from convoy.data.records.record import (
    UNKNOWN_LABEL,
    DataFormat,
    PackedNames,
    Sample,
    locate_errors,
    reading_errors,
)
from convoy.data.source import Ids, Labels, Split
from convoy.errors import ConfigError, DataError
from convoy.rng import key, permutation
from convoy.text import quote_shortened

SYNSET_FILE_NAME = "LOC_synset_mapping.txt"  # one line per class: name and description

_MAX_BYTES = 2**24


@dataclass(frozen=True)
class ConversionSource:
    """The splits that are converted together."""

    locations: Mapping[Split, DataLocation]
    splits: Mapping[Split, StoredRecords]
    class_names: tuple[str, ...]
    synset_file: Path  # may be missing
    class_descriptions: Mapping[str, str]

    def sample(self, split: Split, index: int) -> Sample:
        """Read one image with all of its annotations; its header is checked."""
        records = self.splits[split]
        image = records.read(index)
        encoded = bytes(image.encoded)
        with locate_errors(records, index):
            header = read_header(encoded)
        label = int(records.labels[index])
        filename, text = records.filename_and_text(index)
        return Sample(
            encoded=encoded,
            label=label,
            synset=self.class_names[label],
            filename=filename,
            width=header.width,
            height=header.height,
            image_format=header.format,
            text=text or self.class_descriptions.get(self.class_names[label], ""),
            boxes=image.boxes,
        )


def open_conversion_source(
    folder: Path, split: Split | None, callbacks: ProgressCallbacks
) -> ConversionSource:
    """Open one split, or all that exist."""
    names = [split] if split else available_splits(folder)
    locations = {name: find_split(folder, name) for name in names}
    for location in locations.values():
        check_finished(location.folder)
    splits = {
        name: open_location(location, name, callbacks) for name, location in locations.items()
    }
    synset_file = locations[names[0]].folder / SYNSET_FILE_NAME
    return ConversionSource(
        locations=locations,
        splits=splits,
        class_names=_merge_class_names([records.class_names for records in splits.values()]),
        synset_file=synset_file,
        class_descriptions=_read_synset_file(synset_file),
    )


def _merge_class_names(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Merge the class names of all splits: shards of one split may lack a class or its name."""
    merged = []
    for label in range(max(map(len, names))):
        unknown = f"class {label}"
        known = [split_names[label] for split_names in names if label < len(split_names)]
        merged.append(next((name for name in known if name != unknown), unknown))
    return tuple(merged)


def _read_synset_file(path: Path) -> dict[str, str]:
    """Read lines such as `n01530575 brambling, Fringilla montifringilla`, if the file exists."""
    if not path.is_file():
        return {}
    with reading_errors(path), path.open("rb") as file:
        text = file.read(_MAX_BYTES).decode("utf-8", errors="replace")
    lines = (line.strip().partition(" ") for line in text.splitlines())
    return {name: description for name, _, description in lines if name}


MAX_SHARDS = 50_000  # per split: a manifest lists all of them, and names have five digits

# No path, nothing hidden, no control character, and no comma or space that the box file would lose.
_SAFE_FILE_NAME = re.compile(rb"(?![.\s]|\xef\xbb\xbf)[^\x00-\x1f/,\x7f]{1,255}(?<!\s)")


@dataclass(frozen=True)
class Sharding:
    """The number of shards per split, or of records per shard."""

    counts: tuple[int, ...] = ()  # of the training and the validation split
    records: int = 1024  # per shard, if there are no counts; as in the reference's tar shards

    def starts(self, split: Split, records: int) -> list[int]:
        """Return the start of each shard; sizes differ by one at most, or the last is smaller."""
        if self.counts:
            count = min(records, self.counts[0 if split == "train" else -1])
            starts = [records * shard // count for shard in range(count)]
        else:
            starts = list(range(0, records, self.records))
        if len(starts) > MAX_SHARDS:
            raise ConfigError(
                f"{len(starts):,} shards for {records:,} records of the {split} split; the "
                f"limit is {MAX_SHARDS:,}: use larger shards"
            )
        return starts


@dataclass(frozen=True)
class ConversionRequest:
    source: Path
    target: Path
    data_format: DataFormat
    split: Split | None = None  # None: all that exist
    sharding: Sharding = Sharding()
    workers: int = 1
    shuffle: int | None = None  # seed of a random order
    max_bad_records: int | None = None  # that may be skipped; None: any bad record is an error


@dataclass(frozen=True, eq=False)
class TargetPart:
    """A shard or a class folder to write."""

    name: str  # relative to the target
    split: Split
    record_ids: Ids  # in the source
    first_position: int  # in the target split


@dataclass(frozen=True)
class ConversionPlan:
    """All parts of the target, and the file names if they are class folders."""

    parts: tuple[TargetPart, ...]
    names: Mapping[Split, tuple[Ids, PackedNames]]  # record ids and their file names

    def identity(self, request: ConversionRequest, source: ConversionSource) -> dict[str, Any]:
        """Return what must be equal for a conversion to be continued."""
        digests = {split: hashlib.sha256() for split in source.splits}
        for part in self.parts:
            digests[part.split].update(os.fsencode(part.name) + b"\0" + part.record_ids.tobytes())
        fingerprints = [(split, records.fingerprint()) for split, records in source.splits.items()]
        sha256 = hashlib.sha256(repr((fingerprints, source.class_names)).encode()).hexdigest()
        return {
            "form": request.data_format,
            "shuffle": request.shuffle,
            "source": {"folder": str(request.source.resolve()), "sha256": sha256},
            "splits": {split: digest.hexdigest() for split, digest in digests.items()},
        }


def plan_conversion(
    request: ConversionRequest, source: ConversionSource, notice: Notice
) -> ConversionPlan:
    """Decide which records go into which part of the target."""
    orders = {split: _record_order(request, source, split, notice) for split in source.splits}
    parts: list[TargetPart] = []
    names = {}
    if request.data_format == "folder":
        folders, file_names = folder_names(source.class_names, notice), FileNameChooser(notice)
        for split, order in orders.items():
            records = source.splits[split]
            parts += class_parts(split, order, records.labels, folders)
            names[split] = order, file_names.choose(split, records, order)
    else:
        for split, order in orders.items():
            parts += shard_parts(split, order, request.sharding, request.data_format)
    return ConversionPlan(tuple(parts), names)


def _record_order(
    request: ConversionRequest, source: ConversionSource, split: Split, notice: Notice
) -> Ids:
    """Return the ids of all records not known to be bad, in the order of the target."""
    labels = source.splits[split].labels
    record_ids = np.flatnonzero(labels != UNKNOWN_LABEL)
    if len(record_ids) == 0:
        folder = source.locations[split].folder
        raise DataError(f"{folder}: the {split} split has no usable records")
    if request.shuffle is not None:
        record_ids = record_ids[permutation(key(request.shuffle, "conversion"), len(record_ids))]
    if request.data_format != "folder":
        return record_ids
    by_class = record_ids[np.argsort(labels[record_ids], kind="stable")]
    if not np.array_equal(by_class, record_ids):
        notice(
            f"class folders are sorted by class, the {split} split is not: its order is kept only "
            "within each class"
        )
    return by_class


def shard_parts(
    split: Split, record_ids: Ids, sharding: Sharding, data_format: DataFormat
) -> Iterator[TargetPart]:
    """Yield shards named `train-00000-of-01024` or `train-000000.tar`."""
    starts = sharding.starts(split, len(record_ids))
    for shard, (start, end) in enumerate(pairwise([*starts, len(record_ids)])):
        name = f"{split}-{shard:05}-of-{len(starts):05}"
        if data_format == "webdataset":
            name = f"{split}-{shard:06}.tar"
        yield TargetPart(name, split, record_ids[start:end], start)


def class_parts(
    split: Split, record_ids: Ids, labels: Labels, folders: Sequence[str]
) -> Iterator[TargetPart]:
    """Yield folders such as `train/n01530575`, even for empty classes, so that labels are kept."""
    starts = np.searchsorted(labels[record_ids], np.arange(len(folders) + 1)).tolist()
    for folder, (start, end) in zip(folders, pairwise(starts), strict=True):
        yield TargetPart(f"{split}/{folder}", split, record_ids[start:end], start)


class FileNameChooser:
    """Choose the names of the image files, one split after the other."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._used: npt.NDArray[np.uint64] = np.empty(0, ">u8")

    def choose(self, split: Split, records: StoredRecords, record_ids: Ids) -> PackedNames:
        """Choose a name for each of these records, which are sorted by class."""
        names = PackedNames(
            os.fsencode(records.filename_and_text(index)[0]) for index in record_ids.tolist()
        )
        hashes = (hashlib.blake2b(name, digest_size=8).digest() for name in names)
        digests = np.frombuffer(b"".join(hashes), ">u8")
        reason = _invalid_name_reason(names, records.labels[record_ids].tolist())
        # The file of boxes identifies images by name only, without the folder.
        if len(np.unique(digests)) < len(digests) or np.isin(digests, self._used).any():
            reason = reason or "a name is used twice, in two classes or splits"
        if reason is None:
            self._used = np.concatenate([self._used, digests])
            return names
        self._notice(f"the images of the {split} split are renamed to numbers: {reason}")
        return PackedNames(_numbered_names(split, names))


def _invalid_name_reason(names: PackedNames, labels: list[int]) -> str | None:
    """Return why these names cannot be kept, for example because a folder would reorder them."""
    last, last_label = b"", -1
    for name, label in zip(names, labels, strict=True):
        if not _SAFE_FILE_NAME.fullmatch(name) or not name.lower().endswith(IMAGE_SUFFIXES):
            return f"{quote_shortened(os.fsdecode(name))} is not a valid image file name"
        if label == last_label and name <= last:
            quoted = (quote_shortened(os.fsdecode(path)) for path in (name, last))
            return " comes after ".join(quoted)
        last, last_label = name, label
    return None


def _numbered_names(split: Split, names: PackedNames) -> Iterator[bytes]:
    for number, name in enumerate(names):
        suffix = b"." + name.lower().rpartition(b".")[2]
        suffix = suffix if suffix in IMAGE_SUFFIXES else b".JPEG"
        yield b"%s_%08d%s" % (split.encode(), number, suffix)


def folder_names(class_names: Sequence[str], notice: Notice) -> tuple[str, ...]:
    """Name one folder per class, such that sorting the folders gives the labels."""
    raw = [name.encode("utf-8", "replace") for name in class_names]
    safe = all(map(_SAFE_FILE_NAME.fullmatch, raw)) and "".join(class_names).isprintable()
    if safe and all(name < following for name, following in pairwise(raw)):
        return tuple(class_names)
    notice(
        "the class folders are renamed to numbers: sorting the class names would change the labels"
    )
    width = len(str(len(class_names) - 1))
    return tuple(f"{label:0{width}}" for label in range(len(class_names)))
