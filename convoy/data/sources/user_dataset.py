"""A user's own map-style dataset, whose items are (image, label).

An image is a PIL image or bytes, which convoy crops and augments like a photo, or a float tensor
(3, size, size), which is used as it is. An item is a pure function of (seed, epoch, index): the
global generators of Python, NumPy and torch are seeded before it is read, one item at a time.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from convoy.config.sections.data import DATA, DataConfig, DataEntry
from convoy.data.images.crop import CenterRule, Window, center_rule, training_windows
from convoy.data.images.resize import resize_window
from convoy.data.preprocessing import ImageTransform, Preprocessing, to_pixels
from convoy.data.progress import no_op
from convoy.data.records.ledger import Ledger
from convoy.data.source import (
    Ids,
    Labels,
    Pixels,
    Source,
    Split,
    StepCallback,
    View,
)
from convoy.data.sources.photos import IMAGENET_NORMALIZATION
from convoy.errors import ConfigError, ConvoyError, DataError
from convoy.rng import key

_SEED_BITS = 2**32


class MapDataset(Protocol):
    """What torch.utils.data.Dataset calls map-style."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class UserData:
    """The training and validation split; registered under its name as a value of `--data`."""

    def __init__(self, name: str, train: MapDataset, validation: MapDataset) -> None:
        self.name = name
        self.sources = {
            "train": DatasetSource(name, train, "train"),
            "validation": DatasetSource(name, validation, "validation"),
        }
        names = max((source.class_names for source in self.sources.values()), key=len)
        for source in self.sources.values():
            source.class_names = names
        size = self.sources["train"].tensor_size
        entry = DataEntry(
            len(names), size, len(train), len(validation), fixed_size=size is not None
        )
        DATA.register(name, entry)
        USER_DATA[name] = self


USER_DATA: dict[str, UserData] = {}


def as_splits(data: Any, name: str) -> tuple[MapDataset, MapDataset]:
    """Accept (train, validation) or {"train": …, "validation": …}."""
    if isinstance(data, Mapping):
        data = (data.get("train"), data.get("validation"))
    if isinstance(data, tuple | list) and len(data) == 2:
        train, validation = data
        if all(map(_is_map_style, data)):
            return train, validation
    raise ConfigError(
        f"--data {name} must be a pair of map-style datasets (train, validation) with the methods "
        f"__len__ and __getitem__, got {_describe(data)}"
    )


def _is_map_style(split: Any) -> bool:
    if isinstance(split, str | bytes | torch.utils.data.IterableDataset):
        return False
    return hasattr(split, "__getitem__") and hasattr(split, "__len__")


def _describe(data: Any) -> str:
    if isinstance(data, tuple | list):
        return f"{len(data)} values: {', '.join(type(split).__name__ for split in data[:5])}"
    return type(data).__name__


def _as_label(label: Any) -> int:
    """An integer, also as a tensor or array with one value."""
    array = label if isinstance(label, Tensor | np.ndarray | np.generic) else np.asarray(label)
    value = array.item() if math.prod(array.shape) == 1 else label
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, bool | int):
        raise TypeError(f"the label must be an integer, got {label!r:.60}")
    return int(value)


class DatasetSource(Source):
    """One split of a user's dataset."""

    normalization = IMAGENET_NORMALIZATION

    def __init__(self, name: str, dataset: MapDataset, split: Split) -> None:
        self.name = f"--data {name}, {split} split"
        self._dataset = dataset
        self._lock = Lock()
        if not len(dataset):
            raise DataError(f"{self.name} is empty")
        image, _ = self.item(0, 0, 0)
        self.tensor_size = self._float_size(image)
        self.is_normalized = self.tensor_size is not None
        self.class_names = self._find_class_names()

    def __len__(self) -> int:
        return len(self._dataset)

    def labels(self, ids: Ids) -> Labels:
        return self._labels.take(ids)

    def content(self, ids: Ids) -> bytes:
        return b"".join(self._content(index) for index in ids.tolist())

    def _content(self, index: int) -> bytes:
        image, _ = self.item(index, 0, 0)
        array = _to_array(image) if isinstance(image, Tensor) else np.asarray(image)
        return np.ascontiguousarray(array).tobytes()

    def training_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del ledger
        rule = config.crop_rule if config.augment else None
        return DatasetView(self, size, config.seed, rule, "center-floor")

    def validation_view(self, config: DataConfig, size: int, ledger: Ledger | None = None) -> View:
        del ledger
        return DatasetView(self, size, config.seed, center=center_rule(config.crop_rule))

    @cached_property
    def _labels(self) -> Labels:
        """From `targets`, as torchvision's datasets have it, or from every item."""
        known = getattr(self._dataset, "targets", None)
        if known is None:
            known = [self.item(index, 0, 0)[1] for index in range(len(self))]
        try:
            labels = np.asarray(known)
        except (TypeError, ValueError, RuntimeError):  # values of different shapes
            labels = np.zeros(())
        if labels.shape != (len(self),) or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise DataError(
                f"{self.name}: labels (`targets`, if the dataset has it) must be integers of at "
                "least 0, one per item"
            )
        names = getattr(self._dataset, "classes", None)
        if isinstance(names, Sized) and labels.max() >= len(names):
            raise DataError(
                f"{self.name}: the largest label is {labels.max()}, but `classes` has "
                f"{len(names)} names"
            )
        return labels.astype(np.int64)

    def check_label(self, index: int, label: int) -> None:
        """Labels are known in advance, so that of an item must not differ, or be random."""
        known = int(self._labels[index])
        if label == known:
            return
        reason = f"it was {known} before; labels must not be random"
        if hasattr(self._dataset, "targets"):
            reason = f"`targets` has {known}; remove `targets`, or let it have the same labels"
        raise DataError(f"{self.name}: item {index} has the label {label}, but {reason}")

    def _find_class_names(self) -> tuple[str, ...]:
        names = getattr(self._dataset, "classes", None)
        if names is not None:
            if isinstance(names, str) or not isinstance(names, Iterable):
                raise DataError(f"{self.name}: `classes` must be a list of names, got {names!r}")
            return tuple(map(str, names))
        return tuple(f"class {label}" for label in range(int(self._labels.max()) + 1))

    def item(self, index: int, seed: int, epoch: int) -> tuple[Any, int]:
        """Read an item with all global generators seeded; restores their state."""
        stream = key(seed, "item", epoch, index) % _SEED_BITS
        with self._lock, _seeded(stream):
            try:
                item = self._dataset[index]
                if not isinstance(item, tuple | list) or len(item) != 2:
                    raise TypeError(f"an item must be (image, label), got {_describe(item)}")
                return item[0], _as_label(item[1])
            except ConvoyError:
                raise
            except Exception as error:
                text = f"{self.name}: item {index} failed: {type(error).__name__}: {error}"
                raise DataError(" ".join(text.split())) from error

    def _float_size(self, image: Any) -> int | None:
        if not (isinstance(image, Tensor) and image.is_floating_point()):
            return None
        if image.dim() != 3 or image.shape[0] != 3 or image.shape[1] != image.shape[2]:
            raise DataError(
                f"{self.name}: a float image has the shape (3, size, size), got "
                f"{tuple(image.shape)}"
            )
        return int(image.shape[1])


def _to_array(image: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array; numpy has no bfloat16."""
    image = image.detach().cpu()
    return (image.float() if image.dtype == torch.bfloat16 else image).numpy()


class _seeded:
    """Seeds the global generators inside a block and restores them after it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
        random.seed(self._seed)
        np.random.seed(self._seed)
        torch.default_generator.manual_seed(self._seed)  # that of the CPU only

    def __exit__(self, *_: object) -> None:
        python, numpy, pytorch = self._before
        random.setstate(python)
        np.random.set_state(numpy)
        torch.random.set_rng_state(pytorch)


@dataclass(frozen=True)
class DatasetView:
    """Items as images of one size: random crops with a rule, center crops without."""

    source: DatasetSource
    size: int
    seed: int
    rule: str | None = None
    center: CenterRule = "center"

    def __call__(
        self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback = no_op
    ) -> tuple[int, ...]:
        for position, index in enumerate(ids.tolist()):
            image, label = self.source.item(index, self.seed, epoch)
            self.source.check_label(index, label)
            on_step("read")
            if self.source.is_normalized:
                self._copy_tensor(image, index, out[position])
            else:
                self._crop(self._to_pixels(image, index), index, epoch, out[position])
            on_step("crop")
        return ()

    def _to_pixels(self, image: Any, index: int) -> Pixels:
        try:
            return to_pixels(image)
        except DataError as error:
            raise DataError(f"{self.source.name}: item {index}: {error}") from error

    def _copy_tensor(self, image: Any, index: int, out: Pixels) -> None:
        if not (isinstance(image, Tensor) and image.is_floating_point()):
            raise DataError(
                f"{self.source.name}: item {index} is a {type(image).__name__}, but item 0 is a "
                "float tensor; all images must be of one kind"
            )
        if tuple(image.shape) != (3, self.size, self.size):
            raise DataError(
                f"{self.source.name}: item {index} has the shape {tuple(image.shape)}, not "
                f"{(3, self.size, self.size)}"
            )
        out[:] = _to_array(image.permute(1, 2, 0))

    def _crop(self, pixels: Pixels, index: int, epoch: int, out: Pixels) -> None:
        if self.rule is None:
            out[:] = self._center.pixels(pixels)
            return
        sizes, ids = np.array([pixels.shape[:2]], np.int64), np.array([index])
        windows, flipped = training_windows(sizes, ids, self.seed, epoch, self.rule, None)
        resize_window(pixels, Window._make(windows[0].tolist()), bool(flipped[0]), out)

    @property
    def _center(self) -> ImageTransform:
        return ImageTransform(Preprocessing(self.size, self.center, None, None))
