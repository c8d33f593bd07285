"""The doctor names what really limits: staged cases, with real waiting and real work."""

from collections.abc import Callable
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import simplejpeg
import torch
from photo_files import write_folder
from waiting_clock import WaitingClock

from convoy.bench.doctor import Diagnosis, TimeBudget, diagnose
from convoy.config.schema import RunConfig, build_config
from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import RecordLocation
from convoy.data.records.record import EncodedImage, Records
from convoy.data.source import Labels
from convoy.data.sources.photos import Photos
from convoy.run.open_feed import OpenFeed, feed_of, open_feed

HASTY = TimeBudget(each=0.2, trial=0.02, rounds=3, trials=3.0)
UNTRIED = TimeBudget(each=0.2, rounds=0)
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
    """The same records, each after a while."""

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

    def read(self, number: int) -> EncodedImage:
        self._wait(self._seconds)
        return self._records.read(number)

    def location(self, number: int) -> RecordLocation:
        return self._records.location(number)


def config(folder: Path, **changes: object) -> RunConfig:
    return build_config({**PHOTOS, "data_dir": str(folder), **changes})


def fed_by(records: Records, wish: RunConfig) -> OpenFeed:
    return feed_of(wish, Photos(records, "train"), torch.device("cpu"))


def examined(opened: OpenFeed, model_rate: float | None, budget: TimeBudget = UNTRIED) -> Diagnosis:
    return diagnose(opened, model_rate, lambda _: None, budget)


@pytest.mark.processes
def test_a_slow_disk_is_found_and_more_readers_at_a_time_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WaitingClock()
    monkeypatch.setattr("convoy.bench.feed.perf_counter", clock)
    folder = write_folder(tmp_path, train=24)
    disk = SlowDisk(open_folder(folder, "train"), seconds=0.03, wait=clock.wait)
    found = examined(fed_by(disk, config(folder, dataloader_worker=1)), FAST, HASTY)

    assert found.limit == "disk"
    assert any(one.setting.startswith("--dataloader-worker") for one in found.advice)


def test_large_photos_are_limited_by_decoding(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, train=6)
    noise = np.random.default_rng(0).integers(0, 256, (800, 800, 3), np.uint8)
    for path in (folder / "train").glob("*/*"):
        path.write_bytes(simplejpeg.encode_jpeg(noise, 95))
    found = examined(open_feed(config(folder)), FAST)

    assert found.limit == "decode"


@pytest.mark.parametrize("seconds", [0.0, 0.005])
def test_a_slow_model_is_found_whatever_its_feed_does(tmp_path: Path, seconds: float) -> None:
    folder = write_folder(tmp_path, train=24)
    disk = SlowDisk(open_folder(folder, "train"), seconds)
    found = examined(fed_by(disk, config(folder)), SLOW, HASTY)

    assert found.limit == "model"
    assert found.trials == ()


def test_the_model_is_measured_when_nobody_says_its_rate() -> None:
    # A network of many layers against a feed that only copies.
    values = {**PHOTOS, "model": "resnet20", "data": "generated", "samples": 64}
    found = examined(open_feed(build_config({**values, "norm_type": "batch"})), None)

    assert found.limit == "model"
    assert [step.name for step in found.steps] == ["take", "augment", "normalize", "transfer"]
    assert found.model_rate < found.feed_rate


@pytest.mark.processes
def test_processes_are_measured_where_they_prepare_the_photos(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, train=12)
    opened = open_feed(config(folder, dataloader_kind="processes", dataloader_worker=1))
    found = examined(opened, SLOW)

    assert [step.name for step in found.steps] == [
        "read",
        "decode",
        "crop",
        "normalize",
        "transfer",
    ]
