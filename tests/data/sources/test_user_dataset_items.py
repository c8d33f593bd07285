"""A user's own dataset: items of every kind are read as they are, or refused with their facts."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from convoy.config.sections.data import DataConfig
from convoy.data.sources.user_dataset import DatasetSource, as_splits
from convoy.errors import ConfigError, DataError

SIZE, SAMPLES = 8, 6
GRAY = np.full((SIZE, SIZE, 3), 128, np.uint8)
FLOATS = torch.full((3, SIZE, SIZE), 0.5)


class Items(torch.utils.data.Dataset[Any]):
    """Items by a function of their index, and attributes such as `targets`."""

    def __init__(self, item: Callable[[int], Any], **attributes: Any) -> None:
        self.item = item
        vars(self).update(attributes)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def read(dataset: Any) -> tuple[np.ndarray[Any, Any], list[int]]:
    """All images and labels, as validation reads them."""
    source, ids = DatasetSource("own", dataset, "train"), np.arange(SAMPLES)
    dtype = np.float32 if source.is_normalized else np.uint8
    out = np.zeros((SAMPLES, SIZE, SIZE, 3), dtype)
    source.validation_view(DataConfig(), SIZE)(ids, 0, out)
    return out, source.labels(ids).tolist()


LABELS: list[Callable[[int], Any]] = [
    lambda index: index % 2,
    lambda index: np.int64(index % 2),
    lambda index: torch.tensor(index % 2),
    lambda index: torch.tensor([index % 2]),
    lambda index: np.array(index % 2, np.uint8),
    lambda index: index % 2 == 1,
    lambda index: float(index % 2),
]


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_an_integer_of_any_type(label: Callable[[int], Any]) -> None:
    assert read(Items(lambda index: (GRAY, label(index))))[1] == [0, 1] * 3


@pytest.mark.parametrize("label", ["cat", "3", 1.7, None, [0, 1], np.eye(3)[0], torch.ones(2)])
def test_another_label_is_refused_with_its_value(label: Any) -> None:
    with pytest.raises(DataError, match=r"item 0 failed.*label must be an integer"):
        read(Items(lambda _: (GRAY, label)))


IMAGES: list[tuple[Any, float]] = [
    (GRAY, 128),
    (GRAY[:, :, 0], 128),
    (GRAY[:, ::-1], 128),
    (torch.from_numpy(GRAY), 128),
    (Image.fromarray(GRAY), 128),
    (Image.fromarray(GRAY).convert("L"), 128),
    (Image.fromarray(GRAY).convert("RGBA"), 128),
    (Image.fromarray(np.full((SIZE, SIZE), 128 << 8, np.uint16)), 128),  # 16 bits
    (FLOATS, 0.5),
    (FLOATS.double(), 0.5),
    (FLOATS.bfloat16(), 0.5),
    (FLOATS.clone().requires_grad_(), 0.5),
]


@pytest.mark.parametrize(("image", "value"), IMAGES)
def test_an_image_is_read_with_its_values(image: Any, value: float) -> None:
    assert np.all(read(Items(lambda _: (image, 0)))[0] == value)


@pytest.mark.parametrize(
    ("item", "facts"),
    [
        (lambda _: (GRAY / 255, 0), ["item 0", "float64", "uint8", "float tensor"]),
        (lambda _: (Image.fromarray(GRAY[:, :, 0]).convert("F"), 0), ["item 0", "mode F"]),
        (lambda _: (Image.fromarray(GRAY[:, :, 0]).convert("I"), 0), ["item 0", "mode I"]),
        (lambda index: (GRAY if index else FLOATS, 0), ["item 1", "ndarray", "float tensor"]),
        (lambda index: (FLOATS if index else GRAY, 0), ["item 1", "float32"]),
        (lambda _: GRAY, ["item 0", "(image, label)", "ndarray"]),
        (lambda _: (GRAY, 0, 1), ["item 0", "(image, label)", "3 values"]),
        (lambda _: {"image": GRAY, "label": 0}, ["item 0", "(image, label)", "dict"]),
        (lambda _: (None, 0), ["item 0", "NoneType"]),
    ],
)
def test_another_item_is_refused_with_its_index(item: Any, facts: list[str]) -> None:
    with pytest.raises(DataError) as error:
        read(Items(item))

    assert all(fact in str(error.value) for fact in facts), str(error.value)


def test_targets_that_differ_from_the_items_are_refused() -> None:
    with pytest.raises(DataError, match="item 1 has the label 1, but `targets` has 0"):
        read(Items(lambda index: (GRAY, index % 2), targets=[0] * SAMPLES))


def test_random_labels_are_refused() -> None:
    calls: list[int] = []

    def item(index: int) -> tuple[Any, int]:
        calls.append(index)
        return GRAY, len(calls)

    with pytest.raises(DataError, match="labels must not be random"):
        read(Items(item))


@pytest.mark.parametrize(
    ("attributes", "fact"),
    [
        ({"targets": [0] * 3}, "one per item"),
        ({"targets": [[0], [0, 1]]}, "one per item"),
        ({"targets": ["a"] * SAMPLES}, "integers"),
        ({"classes": "ab"}, "list of names"),
        ({"classes": 5}, "list of names"),
        ({"classes": ["only"]}, "largest label is 1, but `classes` has 1"),
    ],
)
def test_wrong_attributes_are_refused(attributes: dict[str, Any], fact: str) -> None:
    with pytest.raises(DataError, match=fact):
        read(Items(lambda index: (GRAY, index % 2), **attributes))


class Stream(torch.utils.data.IterableDataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    "split", [Stream(), "ab", None, torch.utils.data.DataLoader(Items(lambda _: (GRAY, 0)))]
)
def test_what_is_not_map_style_is_refused_with_its_type(split: Any) -> None:
    with pytest.raises(ConfigError, match=rf"map-style.*{type(split).__name__}"):
        as_splits((split, split), "own")
