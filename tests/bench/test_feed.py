"""Feed measurements: counted elements, consumers, and the cost of each step."""

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import pytest
import torch

from convoy.bench.feed import (
    MAX_ELEMENTS,
    EpochThroughput,
    FeedTimer,
    TimedFeed,
    bench_feed,
    mean_throughput_text,
    simulate_model,
    train_with_zero_lr,
)
from convoy.config.schema import build_config
from convoy.data.loader import MicroBatch
from convoy.errors import ConfigError
from convoy.launch.world import World
from convoy.run.build import build
from convoy.run.open_feed import OpenFeed, open_feed
from convoy.run.process import join_run

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


def make_feed(**changes: object) -> OpenFeed:
    return open_feed(build_config({**VALUES, **changes}))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("copy", [True, False])
def test_every_element_is_counted_with_its_bytes(workers: int, copy: bool) -> None:
    epochs = list(bench_feed(make_feed(dataloader_worker=workers), 3, elements=7, copy=copy))

    assert [(epoch.elements, epoch.images) for epoch in epochs] == [(7, 56)] * 3
    assert [epoch.bytes for epoch in epochs] == [56 * (4 * IMAGE + LABEL)] * 3
    assert all(epoch.seconds > 0 for epoch in epochs)


def test_8_bit_pixels_are_counted_as_bytes() -> None:
    (epoch,) = bench_feed(make_feed(eight_bit_io=True), epochs=1, elements=2)

    assert epoch.bytes == 16 * (IMAGE + LABEL)


def test_an_epoch_has_all_elements_up_to_the_limit() -> None:
    small, large = make_feed(), make_feed(samples=100_000)

    # 100 samples are 6 updates of 2 × 8; 4 samples are left out.
    assert [epoch.elements for epoch in bench_feed(small, epochs=1)] == [12]
    assert [epoch.elements for epoch in bench_feed(large, epochs=1, copy=False)] == [MAX_ELEMENTS]


def test_the_feed_delivers_the_samples_of_training() -> None:
    opened = make_feed(normalization_location="none")
    indices = list(opened.indices(first=13, count=3))
    on_host = list(opened.feed.host_batches(indices, opened.options))
    on_device = list(opened.feed.micro_batches(indices, opened.options))

    assert [(index.update, index.micro) for index in indices] == [(6, 1), (7, 0), (7, 1)]
    for host, device in zip(on_host, on_device, strict=True):
        assert host.images is not None and device.images is not None
        assert torch.equal(host.images.permute(0, 3, 1, 2), device.images)
        assert host.labels is not None and isinstance(device.targets, torch.Tensor)
        assert torch.equal(host.labels, device.targets)


def test_half_resolution_images_are_counted_at_their_size() -> None:
    (epoch,) = bench_feed(
        make_feed(half_res_training=True, image_size=28, eight_bit_io=True), 1, elements=1
    )

    assert epoch.bytes == 8 * (3 * 20 * 20 + LABEL)


def test_synthetic_data_cannot_be_benchmarked() -> None:
    with pytest.raises(ConfigError, match=r"has no loader.*--data generated"):
        make_feed(data="synthetic")


EPOCH = EpochThroughput(elements=512, bytes=4_000_000_000, seconds=2.0, images=16_384)


def test_the_json_has_the_fields_of_the_reference_as_floats() -> None:
    values = EPOCH.as_json()

    assert values == {
        "elements_processed": 512.0,
        "total_bytes_processed": 4e9,
        "time_elapsed": 2.0,
        "elements_per_second": 256.0,
        "bandwidth": pytest.approx(2.0),
    }
    assert {type(value) for value in values.values()} == {float}


def test_an_epoch_is_printed_in_one_line() -> None:
    assert EPOCH.as_text(3) == "epoch 3: 512 elements in 2.000 s, 256.0 elements/s, 2.000 GB/s"


def test_the_mean_throughput_is_all_images_divided_by_the_total_time() -> None:
    slow = EpochThroughput(elements=512, bytes=1, seconds=6.0, images=16_384)

    assert mean_throughput_text([EPOCH, slow]) == "mean throughput: 4096.0 imgs/sec"


def micro_batches(count: int) -> list[MicroBatch]:
    images, labels = torch.zeros(4, 3, 12, 12), torch.zeros(4, dtype=torch.int64)
    return [MicroBatch(images, labels)] * count


def test_a_simulated_device_is_not_faster_than_its_rate() -> None:
    start = perf_counter()
    simulate_model(200, micro_batches(3))

    assert perf_counter() - start >= 12 / 200


def test_a_consumer_gets_the_micro_batches_of_one_update_at_a_time() -> None:
    opened = make_feed()
    used: list[int] = []

    def consume(batches: Iterable[MicroBatch]) -> None:
        used.append(len(list(batches)))

    FeedTimer(opened).seconds(TimedFeed(opened.feed, opened.options, consume), updates=3)

    assert used == [2, 2, 2]


def test_measuring_a_model_does_not_change_its_weights(tmp_path: Path) -> None:
    opened = make_feed(gradient_accumulation=3, micro_batch_size=4)
    with join_run(World.single_process(), opened.plan) as context:
        parts = build(context, opened.source, None, tmp_path)
        weights = [optimizer.flat_params.values for optimizer in parts.optimizers]
        before = [values.clone() for values in weights]
        train_with_zero_lr(parts.trainer, micro_batches(3))

        assert all(map(torch.equal, before, weights))


@pytest.mark.parametrize(
    ("options", "names", "in_loop"),
    [
        ({}, ["take", "augment", "normalize", "transfer"], ["transfer"]),
        ({"normalization_location": "none"}, ["take", "augment", "collate", "transfer"], None),
        ({"eight_bit_io": True}, ["take", "augment", "transfer"], None),
        ({"mixup_alpha": 0.4}, ["take", "augment", "normalize", "transfer", "mix"], ["mix"]),
        (
            {"mixup_alpha": 0.4, "hostside_image_mixing": True},
            ["take", "augment", "normalize", "mix", "transfer"],
            ["transfer"],
        ),
    ],
)
def test_every_step_has_a_cost(
    options: dict[str, object], names: list[str], in_loop: list[str] | None
) -> None:
    steps = FeedTimer(make_feed(**options)).steps(seconds=0.01)

    assert [step.name for step in steps] == names
    assert all(step.seconds > 0 for step in steps)
    assert all(not step.by_workers for step in steps if step.name in (in_loop or ["transfer"]))
