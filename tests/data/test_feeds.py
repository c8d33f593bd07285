"""The feeds of a run: which samples are used, and how the loader is configured by default."""

import pytest
import torch

from convoy.config.schema import build_config
from convoy.data.feeds import loader_options, make_training_feed
from convoy.data.loader import NeededInputs, TrainingFeed
from convoy.data.sources.shapes import ShapesSource
from convoy.planning.plan import plan_run

CPU = torch.device("cpu")
SAMPLES, SIZE = 60, 12


def training_feed(percentage: int, seed: int = 0) -> TrainingFeed:
    values = {"image_size": SIZE, "samples": SAMPLES, "micro_batch_size": 5}
    values |= {"dataset_percentage_to_use": percentage, "seed": seed}
    source = ShapesSource(SAMPLES, SIZE)
    feed = make_training_feed(plan_run(build_config(values)), source, CPU, NeededInputs())
    assert isinstance(feed, TrainingFeed)
    return feed


def used_samples(percentage: int, seed: int = 0) -> set[int]:
    subset = training_feed(percentage, seed).order.subset
    return set(range(SAMPLES) if subset is None else subset.tolist())


def test_a_percentage_uses_the_same_samples_with_every_seed() -> None:
    assert used_samples(50, seed=0) == used_samples(50, seed=1)
    assert len(used_samples(50)) == SAMPLES // 2


def test_a_larger_percentage_contains_the_samples_of_a_smaller_one() -> None:
    assert used_samples(25) < used_samples(50) < used_samples(100) == set(range(SAMPLES))


def test_the_samples_of_a_percentage_are_not_only_the_first_ones() -> None:
    assert max(used_samples(50)) >= SAMPLES // 2


@pytest.mark.parametrize(("workers", "piece"), [(1, 10), (3, 4), (4, 3), (0, None)])
def test_workers_share_every_batch_of_encoded_images(workers: int, piece: int | None) -> None:
    values = {"data": "imagenet", "micro_batch_size": 10, "dataloader_worker": workers}

    assert loader_options(build_config(values)).piece_size == piece
    assert loader_options(build_config(values | {"data": "shapes"})).piece_size is None
