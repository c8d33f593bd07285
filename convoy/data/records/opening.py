"""A folder of unknown form → the records of a split, whichever of the three forms lies there."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from convoy.data.records.folder import FOLDERS, ImageFolder, open_folder
from convoy.data.records.indexing import Notice, Progress
from convoy.data.records.manifest import refuse_unfinished
from convoy.data.records.record import Form, Records
from convoy.data.records.shards import BELOW, has_shards
from convoy.data.records.tar import TarShards, open_tar_shards
from convoy.data.records.tar_shards import has_tar_shards
from convoy.data.records.tfrecord import TfRecords, open_tfrecords
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError

Stored = ImageFolder | TfRecords | TarShards

SPLITS: tuple[Split, ...] = ("train", "validation")
CALLED: dict[Form, str] = {
    "folder": "class folders",
    "tfrecord": "TFRecord shards",
    "webdataset": "tar shards",
}
_SHOWN_REMARKS = 3
_CENTER_CROP = re.compile(r"CenterCrop\((?:size=)?\(?(\d{1,5})(?:, \1\))?\)")


@dataclass(frozen=True)
class Place:
    """Where data lies, and in which form."""

    home: Path
    form: Form

    def __str__(self) -> str:
        return f"{CALLED[self.form]} in {self.home}"


def open_records(folder: Path, split: Split, notice: Notice, progress: Progress) -> Records:
    """One split, from the folder or from `imagenet-data` below it."""
    place = find_place(folder, split)
    refuse_unfinished(place.home)
    records = open_place(place, split, notice, progress)
    if len(records.class_names) < 2:
        raise ConfigError(
            f"{place.home}: one class only, among {len(records)} records of the {split} split; a "
            "classifier needs two or more"
        )
    return records


def cropped_side(records: Records) -> int | None:
    """The side of the middles that were taken before the images were stored, if they were."""
    steps = records.steps_done if isinstance(records, TarShards) else ()
    found = [_CENTER_CROP.fullmatch(step) for step in steps]
    return next((int(one[1]) for one in found if one), None)


def find_place(folder: Path, split: Split) -> Place:
    """The one place that holds the split; ConfigError where there is none, or several."""
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise ConfigError(f"{folder}: {what}; name the one with the images")
    try:
        places = list(_places(folder, split))
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}") from error
    if len(places) > 1:
        raise ConfigError(
            f"{folder}: the {split} split lies there more than once: "
            f"{', '.join(map(str, places))}; name a folder with one of them in --data-dir"
        )
    # What opens the other split can say best what is missing of this one.
    others = [place for other in SPLITS for place in _places(folder, other)]
    if not places and not others:
        shards = f"{split}-00000-of-00128 (TFRecord) or {split}-000000.tar (WebDataset)"
        raise ConfigError(
            f"{folder}: no images there, nor in {BELOW} below it; looked for folders "
            f"{' or '.join(FOLDERS[split])} with one folder a class, and for shards {shards}"
        )
    return (places or others)[0]


def splits_in(folder: Path) -> list[Split]:
    """Those that are there; with none of them the training split, so that it is asked for."""
    return [split for split in SPLITS if any(_places(folder, split))] or ["train"]


def _places(folder: Path, split: Split) -> Iterator[Place]:
    for home in (folder, folder / BELOW):
        if not home.is_dir():
            continue
        if any((home / name).is_dir() for name in FOLDERS[split]):
            yield Place(home, "folder")
        if has_shards(home, split):
            yield Place(home, "tfrecord")
        if has_tar_shards(home, split):
            yield Place(home, "webdataset")


def open_place(place: Place, split: Split, notice: Notice, progress: Progress) -> Stored:
    """One split, whatever is in it."""
    if place.form == "tfrecord":
        return open_tfrecords(place.home, split, notice, progress)
    if place.form == "webdataset":
        return open_tar_shards(place.home, split, notice, progress)
    images = open_folder(place.home, split)
    if images.passed_over:
        first = "; ".join(images.passed_over[:_SHOWN_REMARKS])
        more = ", …" if len(images.passed_over) > _SHOWN_REMARKS else ""
        notice(f"{place.home}: passed over in the {split} split: {first}{more}")
    return images
