"""Write a contact sheet of the `shapes` dataset as a PNG, with one row per class."""

import argparse
from pathlib import Path

import numpy as np

from convoy.data.sources.shapes import ShapesSource
from convoy.run.contact_sheet import Cell, Sheet, draw

COLUMNS = 12


def sheet_of(image_size: int, seed: int) -> Sheet:
    """Rows by class: consecutive samples have consecutive classes."""
    names = ShapesSource.class_names
    source = ShapesSource(len(names) * COLUMNS, image_size, seed)
    cells = [Cell(pixels.tobytes()) for pixels in source.pixels(np.arange(len(source)))]
    rows = [cells[label :: len(names)] for label in range(len(names))]
    return Sheet(image_size, rows, row_titles=names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path("docs/images/shapes.png"))
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.path.write_bytes(draw(sheet_of(options.image_size, options.seed)))


if __name__ == "__main__":
    main()
