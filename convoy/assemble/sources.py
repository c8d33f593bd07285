"""The data sets by name, and by what is in them."""

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from convoy.config.catalog import DATA
from convoy.config.sections.data import DataConfig
from convoy.data.cifar import cifar10, cifar100
from convoy.data.generated import Generated
from convoy.data.held import hold
from convoy.data.photos import STRICT, AnySource, Photos, judge_known
from convoy.data.records.cache import CachedRecords
from convoy.data.records.indexing import unheard
from convoy.data.records.opening import cropped_side, open_records
from convoy.data.records.record import BadRecordError, Records
from convoy.data.shapes import Shapes
from convoy.data.source import Ids, Split
from convoy.errors import ConfigError
from convoy.plan.network import NetworkPlan

_FEW = 64  # images that are looked at
_MEGABYTE = 10**6


def open_source(config: DataConfig, network: NetworkPlan, split: Split) -> AnySource:
    """One split of the chosen data set: `train` or `validation`."""
    folder = Path(config.data_dir or "")
    match config.data:
        case "cifar10":
            return cifar10(folder, split)
        case "cifar100":
            return cifar100(folder, split)
        case "imagenet":
            # Whoever planned the run has opened the data before, and told what there was to tell.
            records = open_records(folder, split, unheard, unheard)
            photos = Photos(_kept(records, config), split, cropped_side(records))
            _refuse_more_classes(photos, network.classes, folder)
            if config.bad_records == "error":
                judge_known(photos, STRICT)
            return photos
        case "shapes":
            size, seed = network.image_size, config.seed
            most = config.dataset_cache_mb * _MEGABYTE * config.dataset_cache
            return hold(Shapes(_samples(config, split), size, seed, split), most)
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


def fingerprint(source: AnySource) -> str:
    """Which samples these are: every label, and a few images, as pixels or as they are encoded."""
    every = np.arange(len(source), dtype=np.int64)
    few = every[:: max(1, len(source) // _FEW)]
    content = hashlib.sha256(np.ascontiguousarray(source.labels(every)).tobytes())
    content.update(_content(source, few))
    return content.hexdigest()


def _content(source: AnySource, ids: Ids) -> bytes:
    if not isinstance(source, Photos):
        return np.ascontiguousarray(source.pixels(ids)).tobytes()
    encoded = hashlib.sha256()
    for number in ids.tolist():
        with suppress(BadRecordError):  # whether it may be bad is decided where it is used
            encoded.update(source.records.read(number).encoded)
    return encoded.digest()


def _samples(config: DataConfig, split: Split) -> int:
    entry = DATA[config.data]
    samples = (config.samples or entry.train) if split == "train" else entry.validation
    assert samples is not None
    return samples
