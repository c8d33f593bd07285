"""Who takes micro-batches while a feed is measured: how many, and how fast."""

from collections.abc import Iterator
from time import perf_counter

import pytest
import torch

from convoy.assemble.consumers import Consumer, Emptying, Waiting
from convoy.data.feed import MicroBatch


def micro_batches(count: int) -> Iterator[MicroBatch]:
    images, labels = torch.zeros(4, 3, 12, 12), torch.zeros(4, dtype=torch.int64)
    return (MicroBatch(images, labels) for _ in range(count))


@pytest.mark.parametrize("consumer", [Emptying(3), Waiting(3, images_per_second=1e9)])
def test_what_one_update_needs_is_taken_and_no_more(consumer: Consumer) -> None:
    stream = micro_batches(5)
    consumer(stream)

    assert len(list(stream)) == 2


def test_a_stand_in_takes_no_more_images_than_it_was_told() -> None:
    began = perf_counter()
    Waiting(3, images_per_second=200)(micro_batches(3))

    assert perf_counter() - began >= 12 / 200
