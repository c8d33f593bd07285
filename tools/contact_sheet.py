"""Writes a contact sheet of the `shapes` data set as a PNG: a row for each class."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

from convoy.data.shapes import Shapes

COLUMNS = 12
GAP = 4  # pixels of paper between two images
MARGIN = 90  # pixels for the names
DPI = 100


def tile(images: npt.NDArray[np.uint8], rows: int) -> npt.NDArray[np.uint8]:
    """A sheet of images, one row a class: samples count through the classes, so columns first."""
    framed = np.pad(images, ((0, 0), (GAP, 0), (GAP, 0), (0, 0)), constant_values=255)
    _, height, width, channels = framed.shape
    grid = framed.reshape(-1, rows, height, width, channels).transpose(1, 2, 0, 3, 4)
    return grid.reshape(rows * height, -1, channels)


def draw(path: Path, image_size: int, seed: int) -> None:
    """Every image pixel becomes a square of whole pixels, so that nothing is blurred."""
    names = Shapes.class_names
    source = Shapes(len(names) * COLUMNS, image_size, seed)
    scale = max(1, 64 // image_size)
    images = source.pixels(np.arange(len(source))).repeat(scale, 1).repeat(scale, 2)
    sheet = tile(images, len(names))
    height, width = sheet.shape[:2]
    figure = plt.figure(figsize=((width + MARGIN) / DPI, height / DPI), dpi=DPI)
    figure.figimage(sheet, xo=MARGIN)
    for row, name in enumerate(names):
        x, y = 1 - (width + GAP) / (width + MARGIN), 1 - (row + 0.5) / len(names)
        figure.text(x, y, name, ha="right", va="center")
    figure.savefig(path)


def main() -> None:
    """Read the command line, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path("docs/images/shapes.png"))
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw(options.path, options.image_size, options.seed)


if __name__ == "__main__":
    main()
