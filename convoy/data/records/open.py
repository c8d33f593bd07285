"""Open the records of a split from a folder, detecting which of the three formats it has."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from convoy.config.sections.data import DEFAULT_VALIDATION_SHARE
from convoy.data.progress import SILENT, ProgressCallbacks
from convoy.data.records.folder import SPLIT_NAMES, ImageFolder, is_flat, open_folder
from convoy.data.records.index import SHARD_FORMATS
from convoy.data.records.manifest import check_finished
from convoy.data.records.record import DataFormat, Records, reading_errors
from convoy.data.records.shards import ShardedRecords, list_shards
from convoy.data.records.tar import TarShards, open_tar_shards
from convoy.data.records.tfrecord import open_tfrecords
from convoy.data.source import Split
from convoy.errors import ConfigError
from convoy.text import pluralize

StoredRecords = ImageFolder | ShardedRecords

SPLITS: tuple[Split, ...] = ("train", "validation")
IMAGENET_SUBFOLDER = "imagenet-data"  # where the reference code looks

_FORMAT_NAMES: dict[DataFormat, str] = {
    "folder": "class folders",
    "tfrecord": "TFRecord shards",
    "webdataset": "tar shards",
}
_MAX_SHOWN_SKIPPED = 3
_MAX_SEARCHED_SUBFOLDERS = 100
_CENTER_CROP = re.compile(r"CenterCrop\((?:size=)?\(?(\d{1,5})(?:, \1\))?\)")


@dataclass(frozen=True)
class DataLocation:
    """The folder that contains a split, and the format of the data."""

    folder: Path
    data_format: DataFormat

    def __str__(self) -> str:
        return f"{_FORMAT_NAMES[self.data_format]} in {self.folder}"


def open_records(
    folder: Path,
    split: Split,
    callbacks: ProgressCallbacks = SILENT,
    validation_share: float = DEFAULT_VALIDATION_SHARE,
) -> Records:
    """Open one split, from the folder or from `imagenet-data` below it.

    `validation_share` divides a folder that has no splits.
    """
    location = find_split(folder, split)
    check_finished(location.folder)
    records = open_location(location, split, callbacks, validation_share)
    if len(records.class_names) < 2:
        raise ConfigError(
            f"{location.folder}: only one class among the {len(records)} records of the {split} "
            "split; a classifier needs at least two"
        )
    return records


def stored_crop_size(records: Records) -> int | None:
    """Return the side of the center crops if the shards contain crops instead of full images."""
    steps = records.applied_transforms if isinstance(records, TarShards) else ()
    crops = [_CENTER_CROP.fullmatch(step) for step in steps]
    return next((int(crop[1]) for crop in crops if crop), None)


def find_split(folder: Path, split: Split) -> DataLocation:
    """Find the location of the split; raise ConfigError if there is none, or several."""
    if not folder.is_dir():
        problem = "not a folder" if folder.exists() else "no such folder"
        raise ConfigError(f"{folder}: {problem}; specify the folder with the images")
    with reading_errors(folder):
        locations = list(_split_locations(folder, split))
    if len(locations) > 1:
        raise ConfigError(
            f"{folder}: the {split} split exists more than once: "
            f"{', '.join(map(str, locations))}; set --data-dir to a folder with one of them"
        )
    # Opening the split where the other one is gives the best message about what is missing.
    candidates = [location for name in SPLITS for location in _split_locations(folder, name)]
    if not candidates and is_flat(folder):
        candidates = [DataLocation(folder, "folder")]
    if not locations and not candidates:
        shards = f"{split}-00000-of-00128 (TFRecord) or {split}-000000.tar (WebDataset)"
        raise ConfigError(
            f"{folder}: no images here or in {IMAGENET_SUBFOLDER} below it; looked for folders "
            f"{' or '.join(SPLIT_NAMES[split])} with one folder per class, for class folders "
            f"directly in it, and for shards {shards}{_suggest_subfolder(folder)}"
        )
    return (locations or candidates)[0]


def _suggest_subfolder(folder: Path) -> str:
    """The end of a message: the folder inside that has the data, as an unpacked archive has."""
    with reading_errors(folder, "listed"):
        inner = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in inner[:_MAX_SEARCHED_SUBFOLDERS]:
        if any(any(_split_locations(path, split)) for split in SPLITS):
            return f"; did you mean {path}?"
    return ""


def available_splits(folder: Path) -> list[Split]:
    """Return the splits that exist; if none does, the training split, so that opening it fails."""
    existing = [split for split in SPLITS if any(_split_locations(folder, split))]
    if not existing and folder.is_dir() and is_flat(folder):
        return list(SPLITS)
    return existing or ["train"]


def _split_locations(folder: Path, split: Split) -> Iterator[DataLocation]:
    for parent in (folder, folder / IMAGENET_SUBFOLDER):
        if not parent.is_dir():
            continue
        if any((parent / name).is_dir() for name in SPLIT_NAMES[split]):
            yield DataLocation(parent, "folder")
        for data_format in SHARD_FORMATS:
            if list_shards(parent, split, data_format):
                yield DataLocation(parent, data_format)


def open_location(
    location: DataLocation,
    split: Split,
    callbacks: ProgressCallbacks = SILENT,
    validation_share: float = DEFAULT_VALIDATION_SHARE,
) -> StoredRecords:
    """Open one split, even if it has fewer than two classes."""
    if location.data_format == "tfrecord":
        return open_tfrecords(location.folder, split, callbacks)
    if location.data_format == "webdataset":
        return open_tar_shards(location.folder, split, callbacks)
    images = open_folder(location.folder, split, validation_share)
    if images.part is not None and split == "validation":
        callbacks.on_notice(
            f"{location.folder}: no folders {' and '.join(SPLITS)}; validating with "
            f"{pluralize(len(images), 'image')}, {validation_share:.0%} of each class "
            "(--validation-share)"
        )
    if images.skipped_files:
        first = "; ".join(images.skipped_files[:_MAX_SHOWN_SKIPPED])
        more = ", …" if len(images.skipped_files) > _MAX_SHOWN_SKIPPED else ""
        callbacks.on_notice(f"{location.folder}: skipped in the {split} split: {first}{more}")
    return images
