"""The doctor finds the bottleneck of prepared cases."""

from collections.abc import Callable
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import simplejpeg
import torch
from support.fake_clock import WaitingClock
from support.photo_files import write_folder

from convoy.bench.doctor import Diagnosis, TimeBudget, diagnose
from convoy.config.schema import RunConfig, build_config
from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import RecordLocation
from convoy.data.records.record import EncodedImage, Records
from convoy.data.source import Labels
from convoy.data.sources.photos import PhotoSource
from convoy.run.open_feed import OpenFeed, feed_from_source, open_feed

SHORT_BUDGET = TimeBudget(
    seconds_per_rate=0.2, seconds_per_measurement=0.02, rounds=3, seconds_for_trials=3.0
)
NO_TRIALS = TimeBudget(seconds_per_rate=0.2, rounds=0)
PHOTOS = {
    "model": "resnet8",
    "norm_type": "none",
    "data": "imagenet",
    "image_size": 32,
    "num_classes": 3,
    "micro_batch_size": 4,
    "dataloader_worker": 2,
    "dataset_cache": False,
    "threads": 1,
}
FAST, SLOW = 1e6, 10.0  # images per second of a model


class SlowDisk:
    """The same records, each with a delay."""

    def __init__(
        self, records: Records, seconds: float, wait: Callable[[float], None] = sleep
    ) -> None:
        self._records = records
        self._seconds = seconds
        self._wait = wait

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._records.class_names

    @property
    def labels(self) -> Labels:
        return self._records.labels

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> EncodedImage:
        self._wait(self._seconds)
        return self._records.read(index)

    def location(self, index: int) -> RecordLocation:
        return self._records.location(index)


def config(folder: Path, **changes: object) -> RunConfig:
    return build_config({**PHOTOS, "data_dir": str(folder), **changes})


def open_feed_with(records: Records, values: RunConfig) -> OpenFeed:
    return feed_from_source(values, PhotoSource(records, "train"), torch.device("cpu"))


def diagnosis(
    opened: OpenFeed, model_rate: float | None, budget: TimeBudget = NO_TRIALS
) -> Diagnosis:
    return diagnose(opened, model_rate, lambda _: None, budget)


@pytest.mark.processes
def test_a_slow_disk_is_found_and_more_workers_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WaitingClock()
    monkeypatch.setattr("convoy.bench.feed.perf_counter", clock)
    folder = write_folder(tmp_path, train=24)
    disk = SlowDisk(open_folder(folder, "train"), seconds=0.03, wait=clock.wait)
    report = diagnosis(
        open_feed_with(disk, config(folder, dataloader_worker=1)), FAST, SHORT_BUDGET
    )

    assert report.bottleneck == "disk"
    assert any(trial.setting.startswith("--num-workers") for trial in report.advice)


def test_large_photos_are_limited_by_decoding(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, train=6)
    noise = np.random.default_rng(0).integers(0, 256, (800, 800, 3), np.uint8)
    for path in (folder / "train").glob("*/*"):
        path.write_bytes(simplejpeg.encode_jpeg(noise, 95))
    report = diagnosis(open_feed(config(folder)), FAST)

    assert report.bottleneck == "decode"


@pytest.mark.parametrize("seconds", [0.0, 0.005])
def test_a_slow_model_is_the_bottleneck_with_every_feed(tmp_path: Path, seconds: float) -> None:
    folder = write_folder(tmp_path, train=24)
    disk = SlowDisk(open_folder(folder, "train"), seconds)
    report = diagnosis(open_feed_with(disk, config(folder)), SLOW, SHORT_BUDGET)

    assert report.bottleneck == "model"
    assert report.trials == ()


def test_the_model_is_measured_if_its_rate_is_unknown() -> None:
    # A deep network with a feed that only copies.
    values = {**PHOTOS, "model": "resnet20", "data": "generated", "samples": 64}
    report = diagnosis(open_feed(build_config({**values, "norm_type": "batch"})), None)

    assert report.bottleneck == "model"
    assert [step.name for step in report.steps] == ["take", "augment", "normalize", "transfer"]
    assert report.model_rate < report.feed_rate


@pytest.mark.processes
def test_worker_processes_are_measured(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, train=12)
    opened = open_feed(config(folder, dataloader_kind="processes", dataloader_worker=1))
    report = diagnosis(opened, SLOW)

    assert [step.name for step in report.steps] == [
        "read",
        "decode",
        "crop",
        "normalize",
        "transfer",
    ]
