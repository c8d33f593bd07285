"""How the speed of a feed is told, to programs and to people."""

import pytest

from convoy.report.feed_speed import EpochSpeed, mean_line, speed_as_json, speed_line

EPOCH = EpochSpeed(elements=512, bytes=4_000_000_000, seconds=2.0, images=16_384)


def test_the_fields_are_those_of_the_reference_and_all_are_floats() -> None:
    told = speed_as_json(EPOCH)

    assert told == {
        "elements_processed": 512.0,
        "total_bytes_processed": 4e9,
        "time_elapsed": 2.0,
        "elements_per_second": 256.0,
        "bandwidth": pytest.approx(2.0),
    }
    assert {type(value) for value in told.values()} == {float}


def test_an_epoch_reads_in_one_line() -> None:
    assert speed_line(3, EPOCH) == (
        "epoch 3: 512 elements in 2.000 s, 256.0 elements/s, 2.000 GB/s"
    )


def test_the_mean_is_all_images_in_all_the_time() -> None:
    slow = EpochSpeed(elements=512, bytes=1, seconds=6.0, images=16_384)

    assert mean_line([EPOCH, slow]) == "mean throughput: 4096.0 imgs/sec"
