"""The settings that are tried, and that only a significant speedup is recommended."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.fake_clock import WaitingClock

from convoy.bench.doctor import (
    Candidate,
    Interval,
    TimeFeed,
    bootstrap_interval,
    candidates,
    run_trials,
)
from convoy.bench.feed import FeedTimer, TimedFeed
from convoy.config.schema import RunConfig, build_config, option_table
from convoy.data.source import Ids, Pixels
from convoy.data.sources.pixel_source import GeneratedSource
from convoy.run.open_feed import OpenFeed, feed_from_source

VALUES = {
    "model": "resnet8",
    "data": "generated",
    "image_size": 12,
    "num_classes": 5,
    "samples": 4096,
    "micro_batch_size": 8,
    "threads": 1,
}
ROUNDS = 5
CLOCK = WaitingClock()


@pytest.fixture(autouse=True)
def _patched_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.bench.feed.perf_counter", CLOCK)


class SlowSource(GeneratedSource):
    """A source that waits before each batch, as a remote disk would."""

    def pixels(self, ids: Ids) -> Pixels:
        CLOCK.wait(0.02)
        return super().pixels(ids)


def config(**changes: object) -> RunConfig:
    return build_config({**VALUES, **changes})


def slow_feed(values: RunConfig) -> OpenFeed:
    return feed_from_source(values, SlowSource(4096, 12, 5, seed=0), torch.device("cpu"))


def seconds_of(opened: OpenFeed) -> TimeFeed:
    timer = FeedTimer(opened)
    return lambda other: timer.seconds(TimedFeed(other.feed, other.options), updates=8)


def candidate_flags(values: RunConfig, cores: int = 2) -> list[str]:
    return [candidate.flag_text for candidate in candidates(values, cores)]


def test_the_current_setting_is_not_a_candidate() -> None:
    assert "--num-workers 2" in candidate_flags(config(dataloader_worker=1))
    assert "--num-workers 2" not in candidate_flags(config(dataloader_worker=2))
    assert "--normalization-location device" in candidate_flags(config())
    assert "--normalization-location device" not in candidate_flags(config(eight_bit_io=True))


@pytest.mark.parametrize("depth", [1, 200, 255])
@pytest.mark.parametrize("workers", [0, 1, 2, 7, 64])
def test_every_candidate_is_another_valid_value(workers: int, depth: int) -> None:
    current = config(dataloader_worker=workers, prefetch_depth=depth)
    for candidate in candidates(current, cores=2):
        row = option_table()[candidate.option]

        assert row.problem(candidate.value) is None and row.is_available(candidate.value)
        assert candidate.apply_to(current) != current


def test_only_settings_that_affect_the_data_are_tried(tmp_path: Path) -> None:
    photos = config(data="imagenet", data_dir=str(tmp_path), dataset_cache=False)

    assert {"--dataloader-kind processes", "--dataset-cache"} <= set(candidate_flags(photos))
    assert not {"--dataloader-kind processes", "--dataset-cache"} & set(candidate_flags(config()))
    assert "--hostside-image-mixing" in candidate_flags(config(mixup_alpha=0.2))
    assert "--hostside-image-mixing" not in candidate_flags(config())
    assert "--prefetch-depth 6" in candidate_flags(config())
    assert "--prefetch-depth 6" not in candidate_flags(config(dataloader_worker=0))


def test_a_setting_that_changes_the_training_is_marked() -> None:
    assert not Candidate("dataloader_worker", 2).affects_weights
    assert Candidate("eight_bit_io", True).affects_weights


def test_workers_help_if_a_source_only_waits() -> None:
    opened = slow_feed(config(dataloader_worker=1))
    (trial,) = run_trials(opened, [Candidate("dataloader_worker", 4)], seconds_of(opened), ROUNDS)

    assert trial.helps


def test_a_setting_that_is_slower_is_not_recommended() -> None:
    opened = slow_feed(config(dataloader_worker=4))
    (trial,) = run_trials(opened, [Candidate("dataloader_worker", 0)], seconds_of(opened), ROUNDS)

    assert not trial.helps


def test_a_setting_that_helped_once_must_help_again() -> None:
    opened = slow_feed(config())
    measured = 0

    def seconds(feed: OpenFeed) -> float:
        """The current setting is slow only in the first trial."""
        nonlocal measured
        measured += 1
        return 2.0 if feed is opened and measured <= 2 * (ROUNDS + 1) else 1.0

    (trial,) = run_trials(opened, [Candidate("prefetch_depth", 6)], seconds, ROUNDS)

    assert measured == 4 * (ROUNDS + 1)
    assert (trial.speedup.median, trial.helps) == (1.0, False)


def test_the_first_round_of_a_trial_is_a_warmup() -> None:
    opened, measured = slow_feed(config()), set[int]()

    def seconds(feed: OpenFeed) -> float:
        is_first = id(feed) not in measured
        measured.add(id(feed))
        return 100.0 if is_first and feed is opened else 1.0

    (trial,) = run_trials(opened, [Candidate("prefetch_depth", 6)], seconds, ROUNDS)

    assert trial.speedup == Interval(1.0, 1.0, 1.0)


def test_a_candidate_changes_only_its_option() -> None:
    values = config()

    assert Candidate("prefetch_depth", 6).apply_to(values) == replace(
        values, data=replace(values.data, prefetch_depth=6)
    )


def test_equal_values_have_an_empty_interval() -> None:
    interval = bootstrap_interval([2.0] * 5)

    assert (interval.low, interval.median, interval.high) == (2.0, 2.0, 2.0)


def test_one_outlier_has_little_effect_on_the_median_and_the_bounds() -> None:
    interval = bootstrap_interval([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 9.0])

    assert interval.median == 1.0
    assert interval.low >= 0.98 and interval.high < 9.0


def test_the_interval_contains_the_true_median_with_the_stated_probability() -> None:
    rng = random.Random(1)
    trials = 400
    contained = 0
    for _ in range(trials):
        interval = bootstrap_interval([rng.gauss(1.0, 0.1) for _ in range(9)])
        contained += interval.low <= 1.0 <= interval.high

    # The stated probability is 95 %; 90 % of 400 trials is 4.6 standard deviations below it.
    assert contained >= 0.90 * trials
