"""Writes a contact sheet of the `shapes` data set as a PNG: a row for each class."""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from convoy.data.shapes import Shapes

COLUMNS = 14


def draw(path: Path, image_size: int, seed: int) -> None:
    """One row a class, one column a sample."""
    names = Shapes.class_names
    source = Shapes(len(names) * COLUMNS, image_size, seed)
    images = source.pixels(np.arange(len(source)))
    figure, axes = plt.subplots(len(names), COLUMNS, figsize=(COLUMNS, len(names)))
    for sample, image in enumerate(images):
        column, row = divmod(sample, len(names))
        axes[row, column].imshow(image, interpolation="nearest")
        axes[row, column].set(xticks=[], yticks=[])
    for row, name in enumerate(names):
        axes[row, 0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.subplots_adjust(
        left=0.08, right=0.995, bottom=0.005, top=0.995, wspace=0.05, hspace=0.05
    )
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path("docs/images/shapes.png"))
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw(options.path, options.image_size, options.seed)


if __name__ == "__main__":
    main()
