"""Data sets by name and by what is in them: configuration → source."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convoy.config.catalog import DATA
from convoy.config.sections.data import DataConfig
from convoy.data.progress import Notice, Progress, ignore
from convoy.data.records.open import cropped_side, open_records, splits_in
from convoy.data.records.record import CachedRecords, Records
from convoy.data.source import Source, Split
from convoy.data.sources.cifar import cifar10, cifar100
from convoy.data.sources.photos import Photos
from convoy.data.sources.pixel_source import Generated, keep_in_memory
from convoy.data.sources.shapes import Shapes
from convoy.errors import ConfigError
from convoy.models.network import NetworkPlan

_FEW = 64  # images that are looked at
_MEGABYTE = 10**6


def open_source(config: DataConfig, network: NetworkPlan, split: Split) -> Source:
    folder = Path(config.data_dir or "")
    match config.data:
        case "cifar10":
            return cifar10(folder, split)
        case "cifar100":
            return cifar100(folder, split)
        case "imagenet":
            # Whoever planned the run has opened the data before, and told what there was to tell.
            records = open_records(folder, split, ignore, ignore)
            photos = Photos(_kept(records, config), split, cropped_side(records))
            _refuse_more_classes(photos, network.classes, folder)
            if config.bad_records == "error":
                photos.report_known_bad(None)
            return photos
        case "shapes":
            size, seed = network.image_size, config.seed
            most = config.dataset_cache_mb * _MEGABYTE * config.dataset_cache
            return keep_in_memory(Shapes(_samples(config, split), size, seed, split), most)
        case _:
            samples = _samples(config, split)
            return Generated(samples, network.image_size, network.classes, config.seed)


def _kept(records: Records, config: DataConfig) -> Records:
    """As many of them in memory as may be."""
    if not config.dataset_cache:
        return records
    share = config.webdataset_memory_cache_ratio
    if share is None:
        return CachedRecords(records, config.dataset_cache_mb * _MEGABYTE, len(records))
    return CachedRecords(records, float("inf"), int(share * len(records)))


def _refuse_more_classes(photos: Photos, classes: int, folder: Path) -> None:
    found = len(photos.class_names)
    if found > classes:
        raise ConfigError(
            f"{folder}: the {photos.split} split has {found} classes, the network {classes}; use "
            f"--num-classes {found}"
        )


def fingerprint(source: Source) -> str:
    """Which samples these are: every label, and a few images, as pixels or as they are encoded."""
    every = np.arange(len(source), dtype=np.int64)
    few = every[:: max(1, len(source) // _FEW)]
    content = hashlib.sha256(np.ascontiguousarray(source.labels(every)).tobytes())
    content.update(source.content(few))
    return content.hexdigest()


def _samples(config: DataConfig, split: Split) -> int:
    entry = DATA[config.data]
    samples = (config.samples or entry.train) if split == "train" else entry.validation
    assert samples is not None
    return samples


@dataclass(frozen=True)
class FolderContents:
    """What lies in a folder."""

    classes: int
    train: int | None  # samples; None where the split is not there


def look_into(folder: Path, notice: Notice, progress: Progress) -> FolderContents:
    """Open all splits that are there.

    On the way an index is made of data that needs one: once, by one process.
    """
    found = {split: open_records(folder, split, notice, progress) for split in splits_in(folder)}
    classes = max(len(records.class_names) for records in found.values())
    return FolderContents(classes, len(found["train"]) if "train" in found else None)


def look_quietly(folder: Path) -> FolderContents:
    """The same in a process beside the one that tells."""
    return look_into(folder, ignore, ignore)
