"""What a benchmark of a feed counts, and what it feeds."""

import pytest
import torch

from convoy.assemble.data_bench import ELEMENTS, BenchWish, bench_feed
from convoy.assemble.open_feed import OpenFeed, open_feed
from convoy.config.schema import build_config
from convoy.errors import ConfigError

VALUES = {
    "model": "resnet8",
    "data": "generated",
    "image_size": 12,
    "num_classes": 5,
    "samples": 100,
    "micro_batch_size": 8,
    "gradient_accumulation": 2,
    "threads": 1,
}
IMAGE = 3 * 12 * 12
LABEL = 8  # bytes


def opened(**changes: object) -> OpenFeed:
    return open_feed(build_config({**VALUES, **changes}))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("copy", [True, False])
def test_every_element_is_counted_with_its_bytes(workers: int, copy: bool) -> None:
    wish = BenchWish(epochs=3, elements=7, copy=copy)
    epochs = list(bench_feed(opened(dataloader_worker=workers), wish))

    assert [(one.elements, one.images) for one in epochs] == [(7, 56)] * 3
    assert [one.bytes for one in epochs] == [56 * (4 * IMAGE + LABEL)] * 3
    assert all(one.seconds > 0 for one in epochs)


def test_pixels_that_travel_as_bytes_are_counted_as_bytes() -> None:
    (epoch,) = bench_feed(opened(eight_bit_io=True), BenchWish(epochs=1, elements=2))

    assert epoch.bytes == 16 * (IMAGE + LABEL)


def test_an_epoch_is_all_the_data_or_as_much_as_the_reference_measured() -> None:
    few, many = opened(), opened(samples=100_000)

    # 100 samples are 6 updates of 2 × 8; 4 samples are left out.
    assert [one.elements for one in bench_feed(few, BenchWish(epochs=1))] == [12]
    assert [one.elements for one in bench_feed(many, BenchWish(epochs=1, copy=False))] == [ELEMENTS]


def test_what_is_fed_is_what_training_would_get() -> None:
    one = opened(normalization_location="none")
    places = list(one.places(first=13, count=3))
    on_host = list(one.feed.on_host(places, one.hands))
    moved = list(one.feed.micro_batches(places, one.hands))

    assert [(place.update, place.micro) for place in places] == [(6, 1), (7, 0), (7, 1)]
    for host, device in zip(on_host, moved, strict=True):
        assert host.images is not None and device.images is not None
        assert torch.equal(host.images.permute(0, 3, 1, 2), device.images)
        assert host.labels is not None and device.labels is not None
        assert torch.equal(host.labels, device.labels)


def test_smaller_images_of_a_first_phase_are_fed_in_their_size() -> None:
    (epoch,) = bench_feed(
        opened(half_res_training=True, image_size=28, eight_bit_io=True), BenchWish(1, elements=1)
    )

    assert epoch.bytes == 8 * (3 * 20 * 20 + LABEL)


def test_synthetic_data_has_no_way_to_be_measured() -> None:
    with pytest.raises(ConfigError, match=r"never leaves the device.*--data generated"):
        opened(data="synthetic")
