"""A contact sheet: rows of images, with names beside, above and beneath them, as a PNG."""

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from math import ceil

from PIL import Image, ImageDraw, ImageFont

from convoy.errors import ConfigError
from convoy.text import one_line

MOST_PIXELS = 64 * 10**6
_LEAST_SIDE = 64  # small images are shown in larger squares, never smoothed
_GAP = 4
_LINE = 16  # of text
_TEXT = 12
_MARGIN = 160  # the most for the names of rows
_PAPER, _INK = "white", "black"


@dataclass(frozen=True)
class Cell:
    """One square image, as rows of RGB bytes."""

    pixels: bytes
    caption: str = ""


@dataclass(frozen=True)
class Row:
    """Images that belong together."""

    cells: tuple[Cell, ...]
    name: str = ""


@dataclass(frozen=True)
class Sheet:
    """All that is drawn; `heads` are the names of the columns."""

    side: int  # of each image
    rows: tuple[Row, ...]
    heads: tuple[str, ...] = ()


class _Paper:
    """Where everything lies."""

    def __init__(self, sheet: Sheet) -> None:
        self.square = sheet.side * max(1, _LEAST_SIDE // sheet.side)
        widest = max(ceil(_font().getlength(one_line(row.name))) for row in sheet.rows)
        self.left = min(widest + 3 * _GAP, _MARGIN) if widest else _GAP
        self.top = _LINE + _GAP if sheet.heads else _GAP
        captions = any(cell.caption for row in sheet.rows for cell in row.cells)
        self._across = self.square + _GAP
        self._down = self.square + _GAP + (_LINE if captions else 0)
        columns = max(len(row.cells) for row in sheet.rows)
        self.width = self.left + columns * self._across
        self.height = self.top + len(sheet.rows) * self._down

    def corner(self, row: int, column: int) -> tuple[int, int]:
        return self.left + column * self._across, self.top + row * self._down


def draw(sheet: Sheet) -> bytes:
    """The file's content; the same sheet gives the same bytes."""
    paper = _Paper(sheet)
    if paper.width * paper.height > MOST_PIXELS:
        raise ConfigError(
            f"a sheet of {paper.width:,} × {paper.height:,} pixels is too large, "
            f"{MOST_PIXELS:,} is the most; use fewer --rows or --columns"
        )
    picture = Image.new("RGB", (paper.width, paper.height), _PAPER)
    pen = _Pen(picture)
    for column, head in enumerate(sheet.heads):
        pen.write((paper.corner(0, column)[0], _GAP // 2), head, paper.square)
    for number, row in enumerate(sheet.rows):
        _, top = paper.corner(number, 0)
        pen.write((_GAP, top + (paper.square - _LINE) // 2), row.name, paper.left - 2 * _GAP)
        for column, cell in enumerate(row.cells):
            x, y = paper.corner(number, column)
            image = Image.frombytes("RGB", (sheet.side, sheet.side), cell.pixels)
            square = (paper.square, paper.square)
            picture.paste(image.resize(square, Image.Resampling.NEAREST), (x, y))
            pen.write((x, y + paper.square), cell.caption, paper.square)
    content = BytesIO()
    picture.save(content, "PNG", optimize=True)
    return content.getvalue()


class _Pen:
    """Writes lines that keep within their width."""

    def __init__(self, picture: Image.Image) -> None:
        self._draw = ImageDraw.Draw(picture)

    def write(self, at: tuple[int, int], text: str, width: int) -> None:
        shown = one_line(text)
        while shown and _font().getlength(shown) > width:
            shown = shown[:-2] + "…" if len(shown) > 2 else ""
        self._draw.text(at, shown, _INK, _font())


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow brings one."""
    return ImageFont.load_default(_TEXT)
