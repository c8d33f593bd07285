"""Small sets of generated JPEG files."""

from pathlib import Path

import numpy as np
import simplejpeg

SIZES = [(40, 60), (64, 48), (90, 70), (33, 33), (120, 50)]


def jpeg(number: int, quality: int = 90) -> bytes:
    """An image with gradients and noise, different for every number."""
    height, width = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(number)
    down, across = np.mgrid[0:height, 0:width]
    slopes = rng.uniform(-2, 2, (2, 3))
    picture = 128 + down[..., None] * slopes[0] + across[..., None] * slopes[1]
    picture = picture + rng.normal(0, 8, (height, width, 3))
    return simplejpeg.encode_jpeg(np.clip(picture, 0, 255).astype(np.uint8), quality)


def write_folder(
    root: Path, classes: int = 3, train: int = 12, validation: int = 5, boxes: bool = False
) -> Path:
    """Write photos to class folders; `train` and `validation` are the total numbers."""
    rows = []
    for split, count, first in (("train", train, 0), ("validation", validation, 1000)):
        for number in range(count):
            folder = root / split / f"class{number % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{split}_{number:04}.JPEG"
            path.write_bytes(jpeg(first + number))
            rows.append(f"{path.name},0.25,0.25,0.75,0.75")
    if boxes:
        (root / "imagenet_2012_bounding_boxes.csv").write_text("\n".join(rows) + "\n")
    return root


def photo_paths(root: Path, split: str) -> list[Path]:
    """The photos of a split, in the order of their sample ids."""
    return sorted((root / split).glob("*/*"))


def damage(path: Path) -> None:
    """Truncate the file to half of its size."""
    full = path.read_bytes()
    path.write_bytes(full[: len(full) // 2])
