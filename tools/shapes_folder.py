"""Write shapes as JPEG files in class folders: a small dataset for `--data imagenet`.

tools/shapes_folder.py FOLDER    train/<class>/*.jpg and validation/<class>/*.jpg
"""

import argparse
from pathlib import Path

import numpy as np
import simplejpeg

from convoy.data.source import Split
from convoy.data.sources.shapes import ShapesSource

QUALITY = 92


def write(folder: Path, split: Split, samples: int, image_size: int) -> None:
    """Write one file per sample; consecutive samples have consecutive classes."""
    source = ShapesSource(samples, image_size, seed=0, split=split)
    for number in range(samples):
        (pixels,) = source.pixels(np.array([number]))
        class_folder = folder / split / source.class_names[number % len(source.class_names)]
        class_folder.mkdir(parents=True, exist_ok=True)
        (class_folder / f"{number:06}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, QUALITY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument(
        "--samples",
        type=int,
        default=1000,
        help="training samples; validation gets a fifth as many",
    )
    options = parser.parse_args()
    write(options.folder, "train", options.samples, options.image_size)
    write(options.folder, "validation", options.samples // 5, options.image_size)


if __name__ == "__main__":
    main()
