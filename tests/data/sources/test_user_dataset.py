"""A user's own dataset: an item is a pure function of seed, epoch and index."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from convoy.data.sources.user_dataset import DatasetSource, DatasetView

SIZE = 4


class Noise:
    """Items with noise from the global generators, as random transforms draw it."""

    classes = ("even", "odd")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randn(3, SIZE, SIZE)
        return image + float(np.random.rand()) + random.random(), index % 2


def source() -> DatasetSource:
    return DatasetSource("noise", Noise(), "train")


def item(index: int = 2, seed: int = 5, epoch: int = 1) -> Tensor:
    image, _ = source().item(index, seed, epoch)
    assert isinstance(image, Tensor)
    return image


@pytest.mark.parametrize("other", [{"index": 3}, {"seed": 6}, {"epoch": 2}])
def test_the_noise_of_an_item_depends_on_index_seed_and_epoch(other: dict[str, Any]) -> None:
    assert torch.equal(item(), item())
    assert not torch.equal(item(), item(**other))


def test_reading_an_item_restores_the_global_generators() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), float(np.random.rand()), float(torch.rand(()))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    item()

    assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == expected


def test_a_view_reads_the_items_of_its_epoch() -> None:
    view, ids = DatasetView(source(), SIZE, seed=5), np.array([4, 1])
    out = np.empty((2, SIZE, SIZE, 3), np.float32)
    view(ids, 3, out)

    for image, index in zip(out, ids.tolist(), strict=True):
        assert np.array_equal(image.transpose(2, 0, 1), item(index, seed=5, epoch=3).numpy())
