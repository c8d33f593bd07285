"""The data sets by name, and by what is in them."""

import hashlib
from pathlib import Path

import numpy as np

from convoy.config.catalog import DATA
from convoy.config.sections.data import DataConfig
from convoy.data.cifar import cifar10, cifar100
from convoy.data.generated import Generated
from convoy.data.held import hold
from convoy.data.shapes import Shapes
from convoy.data.source import Source, Split
from convoy.plan.network import NetworkPlan

_FEW = 64  # images that are looked at


def open_source(config: DataConfig, network: NetworkPlan, split: Split) -> Source:
    """One split of the chosen data set: `train` or `validation`."""
    match config.data:
        case "cifar10":
            return cifar10(Path(config.data_dir or ""), split)
        case "cifar100":
            return cifar100(Path(config.data_dir or ""), split)
        case "shapes":
            size, seed = network.image_size, config.seed
            return hold(Shapes(_samples(config, split), size, seed, split))
        case _:
            samples = _samples(config, split)
            return Generated(samples, network.image_size, network.classes, config.seed)


def fingerprint(source: Source) -> str:
    """Which samples these are: every label, and the pixels of a few images."""
    every = np.arange(len(source), dtype=np.int64)
    few = every[:: max(1, len(source) // _FEW)]
    content = hashlib.sha256(np.ascontiguousarray(source.labels(every)).tobytes())
    content.update(np.ascontiguousarray(source.pixels(few)).tobytes())
    return content.hexdigest()


def _samples(config: DataConfig, split: Split) -> int:
    entry = DATA[config.data]
    samples = (config.samples or entry.train) if split == "train" else entry.validation
    assert samples is not None
    return samples
