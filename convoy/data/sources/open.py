"""Open the dataset that a config names, and fingerprint datasets."""

import hashlib
from pathlib import Path

import numpy as np

from convoy.config.sections.data import DATA, ENCODED_DATA, DataConfig
from convoy.data.progress import Notice, Progress, ProgressCallbacks, no_op
from convoy.data.records.open import available_splits, find_split, open_records, stored_crop_size
from convoy.data.records.record import CachedRecords, Records
from convoy.data.source import Source, Split
from convoy.data.sources.cifar import CIFAR_FORMATS, find_cifar_format, open_cifar
from convoy.data.sources.photos import PhotoSource
from convoy.data.sources.pixel_source import GeneratedSource, cache_in_memory
from convoy.data.sources.shapes import ShapesSource
from convoy.data.sources.user_dataset import USER_DATA
from convoy.errors import ConfigError
from convoy.models.network import NetworkPlan
from convoy.text import printable, quote_shortened

_FINGERPRINT_IMAGES = 64
_MEGABYTE = 10**6


def open_source(config: DataConfig, network: NetworkPlan, split: Split) -> Source:
    folder = Path(config.data_dir or "")
    match config.data:
        case "cifar10" | "cifar100":
            return open_cifar(CIFAR_FORMATS[config.data], folder, split)
        case "imagenet":
            # Planning opened the data before and printed its notices.
            records = open_records(folder, split, validation_share=config.validation_share)
            photos = PhotoSource(_cached(records, config), split, stored_crop_size(records))
            data_classes, classes = len(photos.class_names), network.classes
            if data_classes > classes:
                raise ConfigError(
                    f"{folder}: the {split} split has {data_classes} classes, but the network has "
                    f"{classes}; use --num-classes {data_classes}"
                )
            if config.bad_records == "error":
                photos.report_known_bad(None)
            return photos
        case "shapes":
            samples = _num_samples(config, split)
            shapes = ShapesSource(samples, network.image_size, config.seed, split)
            max_bytes = config.dataset_cache_mb * _MEGABYTE * config.dataset_cache
            return cache_in_memory(shapes, max_bytes)
        case name if name in USER_DATA:
            return USER_DATA[name].sources[split]
        case _:
            samples = _num_samples(config, split)
            return GeneratedSource(samples, network.image_size, network.classes, config.seed)


def _cached(records: Records, config: DataConfig) -> Records:
    if not config.dataset_cache:
        return records
    share = config.webdataset_memory_cache_ratio
    if share is None:
        return CachedRecords(records, config.dataset_cache_mb * _MEGABYTE, len(records))
    return CachedRecords(records, float("inf"), int(share * len(records)))


def fingerprint(source: Source) -> str:
    """Hash every label and a few images (pixels or encoded bytes) to identify the data."""
    ids = np.arange(len(source), dtype=np.int64)
    hashed_ids = ids[:: max(1, len(source) // _FINGERPRINT_IMAGES)]
    content = hashlib.sha256(np.ascontiguousarray(source.labels(ids)).tobytes())
    content.update(source.content(hashed_ids))
    return content.hexdigest()


def _num_samples(config: DataConfig, split: Split) -> int:
    entry = DATA[config.data]
    samples = (config.samples or entry.train) if split == "train" else entry.validation
    assert samples is not None
    return samples


def recognize_data(folder: Path) -> str:
    """Return the name of the dataset whose files a folder contains."""
    try:
        if not folder.is_dir():
            problem = "not a folder" if folder.exists() else "no such folder"
            raise ConfigError(f"--data-dir {printable(str(folder))}: {problem}")
    except OSError as error:  # for example a name that is too long
        name = quote_shortened(str(folder))
        raise ConfigError(f"--data-dir {name}: {error.strerror}") from error
    except ValueError as error:  # a null byte
        raise ConfigError(f"--data-dir {quote_shortened(str(folder))}: {error}") from error
    cifar_format = find_cifar_format(folder)
    if cifar_format is not None:
        return cifar_format.name
    try:
        find_split(folder, available_splits(folder)[0])
    except ConfigError as error:
        raise ConfigError(f"--data-dir {error}") from error
    return ENCODED_DATA


def inspect_folder(
    folder: Path,
    validation_share: float,
    notice: Notice = no_op,
    progress: Progress = no_op,
) -> tuple[int, int | None]:
    """Return the numbers of classes and of training samples (None without that split).

    Builds the index of data that needs one: once, in one process.
    """
    callbacks = ProgressCallbacks(notice, progress)
    splits = {
        split: open_records(folder, split, callbacks, validation_share)
        for split in available_splits(folder)
    }
    classes = max(len(records.class_names) for records in splits.values())
    return classes, len(splits["train"]) if "train" in splits else None
