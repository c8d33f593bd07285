"""Which settings are tried, and that only a true gain is told as one."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from waiting_clock import WaitingClock

from convoy.bench.doctor import Candidate, Seconds, candidates, interval_of, try_settings
from convoy.bench.feed import FeedTimer, Timed
from convoy.config.schema import RunConfig, build_config, option_table
from convoy.data.source import Ids, Pixels
from convoy.data.sources.pixel_source import Generated
from convoy.run.open_feed import OpenFeed, feed_of

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
def _only_waiting_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.bench.feed.perf_counter", CLOCK)


class Slow(Generated):
    """A source that waits for every batch, as a far disk would, without a core."""

    def pixels(self, ids: Ids) -> Pixels:
        CLOCK.wait(0.02)
        return super().pixels(ids)


def config(**changes: object) -> RunConfig:
    return build_config({**VALUES, **changes})


def slow_feed(wish: RunConfig) -> OpenFeed:
    return feed_of(wish, Slow(4096, 12, 5, seed=0), torch.device("cpu"))


def seconds_of(opened: OpenFeed) -> Seconds:
    timer = FeedTimer(opened)
    return lambda other: timer.seconds(Timed(other.feed, other.options), updates=8)


def words(wish: RunConfig, cores: int = 2) -> list[str]:
    return [one.words for one in candidates(wish, cores)]


def test_the_present_setting_is_no_candidate() -> None:
    assert "--dataloader-worker 2" in words(config(dataloader_worker=1))
    assert "--dataloader-worker 2" not in words(config(dataloader_worker=2))
    assert "--normalization-location device" in words(config())
    assert "--normalization-location device" not in words(config(eight_bit_io=True))


@pytest.mark.parametrize("depth", [1, 200, 255])
@pytest.mark.parametrize("workers", [0, 1, 2, 7, 64])
def test_every_candidate_is_another_value_that_a_run_takes(workers: int, depth: int) -> None:
    present = config(dataloader_worker=workers, prefetch_depth=depth)
    for one in candidates(present, cores=2):
        row = option_table()[one.option]

        assert row.problem(one.value) is None and row.is_ready(one.value)
        assert one.of(present) != present


def test_only_settings_that_the_data_can_notice_are_tried(tmp_path: Path) -> None:
    photos = config(data="imagenet", data_dir=str(tmp_path), dataset_cache=False)

    assert {"--dataloader-kind processes", "--dataset-cache"} <= set(words(photos))
    assert not {"--dataloader-kind processes", "--dataset-cache"} & set(words(config()))
    assert "--hostside-image-mixing" in words(config(mixup_alpha=0.2))
    assert "--hostside-image-mixing" not in words(config())
    assert "--prefetch-depth 6" in words(config())
    assert "--prefetch-depth 6" not in words(config(dataloader_worker=0))


def test_a_setting_that_is_part_of_the_training_is_known() -> None:
    assert not Candidate("dataloader_worker", 2).changes_bits
    assert Candidate("eight_bit_io", True).changes_bits


def test_workers_gain_where_a_source_only_waits() -> None:
    opened = slow_feed(config(dataloader_worker=1))
    (found,) = try_settings(opened, [Candidate("dataloader_worker", 4)], seconds_of(opened), ROUNDS)

    assert found.helps


def test_a_setting_that_makes_it_slower_is_no_advice() -> None:
    opened = slow_feed(config(dataloader_worker=4))
    (found,) = try_settings(opened, [Candidate("dataloader_worker", 0)], seconds_of(opened), ROUNDS)

    assert not found.helps


def test_what_seemed_to_help_once_must_help_again() -> None:
    opened = slow_feed(config())
    measured = 0

    def seconds(one: OpenFeed) -> float:
        """The present setting is slow at first, by bad luck."""
        nonlocal measured
        measured += 1
        return 2.0 if one is opened and measured <= 2 * (ROUNDS + 1) else 1.0

    (found,) = try_settings(opened, [Candidate("prefetch_depth", 6)], seconds, ROUNDS)

    assert measured == 4 * (ROUNDS + 1)
    assert (found.ratio.middle, found.helps) == (1.0, False)


def test_the_run_stays_the_same_but_for_the_one_option() -> None:
    wish = config()

    assert Candidate("prefetch_depth", 6).of(wish) == replace(
        wish, data=replace(wish.data, prefetch_depth=6)
    )


def test_equal_values_leave_no_doubt() -> None:
    found = interval_of([2.0] * 5)

    assert (found.low, found.middle, found.high) == (2.0, 2.0, 2.0)


def test_one_outlier_moves_neither_the_median_nor_both_bounds() -> None:
    found = interval_of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 9.0])

    assert found.middle == 1.0
    assert found.low >= 0.98 and found.high < 9.0


def test_the_bounds_hold_the_true_median_about_as_often_as_they_say() -> None:
    chance = random.Random(1)
    trials = 400
    held = 0
    for _ in range(trials):
        found = interval_of([chance.gauss(1.0, 0.1) for _ in range(9)])
        held += found.low <= 1.0 <= found.high

    # 95 % are said; of 400 a share below 90 % would be 4.6 standard deviations away.
    assert held >= 0.90 * trials
