"""Data loaders in plain PyTorch and Pillow: torch's DataLoader with worker processes."""

import random
from io import BytesIO
from math import exp, log, sqrt

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """A random-resized crop: 8 … 100 % of the area, ratio 3/4 … 4/3, ten attempts."""
    for _ in range(10):
        area = random.uniform(0.08, 1.0) * width * height
        ratio = exp(random.uniform(log(3 / 4), log(4 / 3)))
        crop_width, crop_height = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = random.randint(0, width - crop_width)
            top = random.randint(0, height - crop_height)
            return left, top, left + crop_width, top + crop_height
    return 0, 0, width, height


class PillowPhotos(Dataset[Tensor]):
    """Decode, crop, resize and flip with Pillow."""

    def __init__(self, encoded: list[bytes], size: int) -> None:
        self.encoded, self.size = encoded, size

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, number: int) -> Tensor:
        image = Image.open(BytesIO(self.encoded[number])).convert("RGB")
        box = random_box(*image.size)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        return torch.from_numpy(np.array(image))


class PillowCifar(Dataset[Tensor]):
    """Pad by 4, crop and flip with Pillow."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> Tensor:
        image = ImageOps.expand(Image.fromarray(self.pixels[number]), 4)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        return torch.from_numpy(np.array(image))


def loader(samples: Dataset[Tensor], batch: int, workers: int) -> DataLoader[Tensor]:
    """A DataLoader with persistent workers, so that their start is not measured."""
    return DataLoader(
        samples, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
