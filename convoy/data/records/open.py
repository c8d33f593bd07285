"""A folder of unknown format → the records of a split, whichever of the three formats it has."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from convoy.data.progress import Notice, Progress
from convoy.data.records.folder import SPLIT_NAMES, ImageFolder, open_folder
from convoy.data.records.manifest import refuse_unfinished
from convoy.data.records.record import Form, Records
from convoy.data.records.shards import ShardedRecords, list_shards
from convoy.data.records.tar import TarShards, open_tar_shards
from convoy.data.records.tfrecord import open_tfrecords
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError

StoredRecords = ImageFolder | ShardedRecords

SPLITS: tuple[Split, ...] = ("train", "validation")
SUBFOLDER = "imagenet-data"  # that the reference looks for

_FORM_NAMES: dict[Form, str] = {
    "folder": "class folders",
    "tfrecord": "TFRecord shards",
    "webdataset": "tar shards",
}
_SHOWN_REMARKS = 3
_CENTER_CROP = re.compile(r"CenterCrop\((?:size=)?\(?(\d{1,5})(?:, \1\))?\)")


@dataclass(frozen=True)
class DataLocation:
    """The folder that holds a split, and the format of the data."""

    folder: Path
    form: Form

    def __str__(self) -> str:
        return f"{_FORM_NAMES[self.form]} in {self.folder}"


def open_records(folder: Path, split: Split, notice: Notice, progress: Progress) -> Records:
    """One split, from the folder or from `imagenet-data` below it."""
    location = find_data(folder, split)
    refuse_unfinished(location.folder)
    records = open_location(location, split, notice, progress)
    if len(records.class_names) < 2:
        raise ConfigError(
            f"{location.folder}: one class only, among {len(records)} records of the {split} "
            "split; a classifier needs two or more"
        )
    return records


def cropped_side(records: Records) -> int | None:
    """The side of the center crops that were stored instead of whole images, if they were."""
    steps = records.steps_done if isinstance(records, TarShards) else ()
    crops = [_CENTER_CROP.fullmatch(step) for step in steps]
    return next((int(crop[1]) for crop in crops if crop), None)


def find_data(folder: Path, split: Split) -> DataLocation:
    """The one location of the split; ConfigError if there is none, or several."""
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise ConfigError(f"{folder}: {what}; name the one with the images")
    try:
        locations = list(_locations(folder, split))
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}") from error
    if len(locations) > 1:
        raise ConfigError(
            f"{folder}: the {split} split is there more than once: "
            f"{', '.join(map(str, locations))}; name a folder with one of them in --data-dir"
        )
    # Opening it where the other split is gives the best message about what is missing.
    others = [location for other in SPLITS for location in _locations(folder, other)]
    if not locations and not others:
        shards = f"{split}-00000-of-00128 (TFRecord) or {split}-000000.tar (WebDataset)"
        raise ConfigError(
            f"{folder}: no images there, nor in {SUBFOLDER} below it; looked for folders "
            f"{' or '.join(SPLIT_NAMES[split])} with one folder a class, and for shards {shards}"
        )
    return (locations or others)[0]


def splits_in(folder: Path) -> list[Split]:
    """Those that are there; if none is, the training split, so that opening it reports that."""
    return [split for split in SPLITS if any(_locations(folder, split))] or ["train"]


def _locations(folder: Path, split: Split) -> Iterator[DataLocation]:
    for home in (folder, folder / SUBFOLDER):
        if not home.is_dir():
            continue
        if any((home / name).is_dir() for name in SPLIT_NAMES[split]):
            yield DataLocation(home, "folder")
        if list_shards(home, split, "tfrecord"):
            yield DataLocation(home, "tfrecord")
        if list_shards(home, split, "webdataset"):
            yield DataLocation(home, "webdataset")


def open_location(
    location: DataLocation, split: Split, notice: Notice, progress: Progress
) -> StoredRecords:
    """One split, even if it has one class or none."""
    if location.form == "tfrecord":
        return open_tfrecords(location.folder, split, notice, progress)
    if location.form == "webdataset":
        return open_tar_shards(location.folder, split, notice, progress)
    images = open_folder(location.folder, split)
    if images.passed_over:
        first = "; ".join(images.passed_over[:_SHOWN_REMARKS])
        more = ", …" if len(images.passed_over) > _SHOWN_REMARKS else ""
        notice(f"{location.folder}: passed over in the {split} split: {first}{more}")
    return images
