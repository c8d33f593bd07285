"""The contact sheet: positions of images, enlargement without smoothing, and the size limit."""

from io import BytesIO

import pytest
from PIL import Image

from convoy.errors import ConfigError
from convoy.run.contact_sheet import Cell, Sheet, draw

RED, BLUE, WHITE, BLACK = (255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def plain_cell(color: tuple[int, int, int], side: int, caption: str = "") -> Cell:
    return Cell(bytes(color) * side * side, caption)


def draw_image(sheet: Sheet) -> Image.Image:
    picture = Image.open(BytesIO(draw(sheet)))
    assert picture.format == "PNG"
    return picture.convert("RGB")


def colors(picture: Image.Image) -> dict[tuple[int, int, int], int]:
    """Return the number of pixels of each color."""
    found = picture.getcolors(picture.width * picture.height)
    assert found is not None
    return {color: count for count, color in found if isinstance(color, tuple)}


def test_every_image_is_drawn_in_its_size() -> None:
    row = (plain_cell(RED, 64), plain_cell(BLUE, 64))
    picture = draw_image(Sheet(64, (row, row)))

    assert colors(picture)[RED] == colors(picture)[BLUE] == 2 * 64 * 64


def test_a_small_image_is_enlarged_by_whole_pixels() -> None:
    half = bytes(RED) * 4 * 8 + bytes(BLUE) * 4 * 8
    picture = draw_image(Sheet(8, ((Cell(half),),)))

    assert colors(picture).keys() == {RED, BLUE, WHITE}
    assert colors(picture)[RED] == 32 * 64


def test_rows_go_down_and_columns_across() -> None:
    sheet = Sheet(64, ((plain_cell(RED, 64), plain_cell(BLUE, 64)), (plain_cell(BLUE, 64),)))
    picture = draw_image(sheet)
    centers = [(4 + 32, 4 + 32), (4 + 68 + 32, 4 + 32), (4 + 32, 4 + 68 + 32)]

    assert [picture.getpixel(position) for position in centers] == [RED, BLUE, BLUE]


def test_titles_and_captions_take_space_around_the_images() -> None:
    bare = draw_image(Sheet(64, ((plain_cell(RED, 64),),)))
    named = draw_image(Sheet(64, ((plain_cell(RED, 64, "cat"),),), ("a cat",), ("epoch 1",)))

    assert named.width > bare.width and named.height >= bare.height + 2 * 16
    assert BLACK in colors(named) and BLACK not in colors(bare)
    assert colors(named)[RED] == colors(bare)[RED]


@pytest.mark.parametrize("name", ["x" * 500, "two\nlines\x1b[31m", "Türkçe 猫", "…"])
def test_any_name_can_be_drawn(name: str) -> None:
    picture = draw_image(Sheet(64, ((plain_cell(RED, 64, name),),), (name,), (name,)))

    assert picture.width < 300
    assert colors(picture)[RED] == 64 * 64


def test_the_same_sheet_gives_the_same_bytes() -> None:
    sheet = Sheet(64, ((plain_cell(RED, 64),),), ("red",))

    assert draw(sheet) == draw(sheet)


def test_a_sheet_that_is_too_large_is_refused_before_it_is_drawn() -> None:
    row = (plain_cell(RED, 64),) * 200

    with pytest.raises(ConfigError, match=r"too large.*fewer --rows or --columns"):
        draw(Sheet(64, (row,) * 200))
