"""The contact sheet of the docs can be drawn again."""

from io import BytesIO
from pathlib import Path

import numpy as np
from contact_sheet import COLUMNS, sheet_of
from PIL import Image

from convoy.data.sources.shapes import ShapesSource
from convoy.run.contact_sheet import draw

PICTURE = Path(__file__).parents[2] / "docs/images/shapes.png"


def test_every_class_has_a_row_of_its_samples() -> None:
    sheet = sheet_of(image_size=12, seed=0)
    names = ShapesSource.class_names
    source = ShapesSource(len(names) * COLUMNS, 12, 0)
    (second_of_class_3,) = source.pixels(np.array([len(names) + 3]))

    assert sheet.row_titles == names
    assert [len(row) for row in sheet.rows] == [COLUMNS] * len(names)
    assert sheet.rows[3][1].pixels == second_of_class_3.tobytes()


def test_the_picture_of_the_docs_has_the_size_of_a_drawn_sheet() -> None:
    drawn = Image.open(BytesIO(draw(sheet_of(image_size=32, seed=0))))

    with Image.open(PICTURE) as picture:
        assert drawn.size == picture.size
