"""A contact sheet of samples exactly as training or validation sees them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from math import ceil
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from convoy.batch import MixedTargets
from convoy.config.schema import RunConfig
from convoy.data.feeds import make_ledger
from convoy.data.loader import MicroBatch, MicroBatchIndex
from convoy.data.source import Ids, Pixels, Split, View
from convoy.data.sources.open import open_source
from convoy.errors import ConfigError
from convoy.files import check_output, storage_errors, write_atomically
from convoy.models.network import plan_network
from convoy.rng import key, permutation
from convoy.run.open_feed import OpenFeed, feed_from_source, open_feed
from convoy.text import one_line

MAX_SHEET_PIXELS = 64 * 10**6
_MIN_SIDE = 64  # smaller images are enlarged without smoothing
_GAP = 4
_LINE_HEIGHT = 16  # height of a text line
_FONT_SIZE = 12
_MAX_TITLE_WIDTH = 160  # maximum width of the row titles
_BACKGROUND, _TEXT_COLOR = "white", "black"


@dataclass(frozen=True)
class Cell:
    """One square image, as rows of RGB bytes."""

    pixels: bytes
    caption: str = ""


@dataclass(frozen=True)
class Sheet:
    """The contents of a contact sheet."""

    side: int  # of each image
    rows: Sequence[Sequence[Cell]]
    row_titles: Sequence[str] = ()
    column_titles: Sequence[str] = ()


def draw(sheet: Sheet) -> bytes:
    """Draw the sheet as a PNG file; the same sheet gives the same bytes."""
    square = sheet.side * max(1, _MIN_SIDE // sheet.side)
    titles = sheet.row_titles or [""] * len(sheet.rows)
    widest = max(ceil(_font().getlength(one_line(title))) for title in titles)
    left = min(widest + 3 * _GAP, _MAX_TITLE_WIDTH) if widest else _GAP
    top = _LINE_HEIGHT + _GAP if sheet.column_titles else _GAP
    captions = any(cell.caption for row in sheet.rows for cell in row)
    column_width, row_height = square + _GAP, square + _GAP + (_LINE_HEIGHT if captions else 0)
    width = left + column_width * max(map(len, sheet.rows))
    height = top + row_height * len(sheet.rows)
    if width * height > MAX_SHEET_PIXELS:
        raise ConfigError(
            f"a sheet of {width:,} × {height:,} pixels is too large, "
            f"the maximum is {MAX_SHEET_PIXELS:,} pixels; use fewer --rows or --columns"
        )
    picture = Image.new("RGB", (width, height), _BACKGROUND)
    pen = ImageDraw.Draw(picture)
    for column, title in enumerate(sheet.column_titles):
        _draw_text(pen, (left + column * column_width, _GAP // 2), title, square)
    for y, row, title in zip(range(top, height, row_height), sheet.rows, titles, strict=True):
        _draw_text(pen, (_GAP, y + (square - _LINE_HEIGHT) // 2), title, left - 2 * _GAP)
        for column, cell in enumerate(row):
            x = left + column * column_width
            image = Image.frombytes("RGB", (sheet.side, sheet.side), cell.pixels)
            picture.paste(image.resize((square, square), Image.Resampling.NEAREST), (x, y))
            _draw_text(pen, (x, y + square), cell.caption, square)
    content = BytesIO()
    picture.save(content, "PNG", optimize=True)
    return content.getvalue()


def _draw_text(pen: ImageDraw.ImageDraw, position: tuple[int, int], text: str, width: int) -> None:
    """Draw one line of text, shortened to the width."""
    line = one_line(text)
    while line and _font().getlength(line) > width:
        line = line[:-2] + "…" if len(line) > 2 else ""
    pen.text(position, line, _TEXT_COLOR, _font())


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_FONT_SIZE)


@dataclass(frozen=True)
class SheetRequest:
    """What to draw, and where to write it."""

    output: Path
    rows: int
    columns: int
    epoch: int  # the first one shown, from 0
    split: Split
    overwrite: bool


def write_sheet(config: RunConfig, request: SheetRequest) -> Sheet:
    check_output(request.output, request.overwrite)
    sheet = (_training_sheet if request.split == "train" else _validation_sheet)(config, request)
    _write(request.output, sheet)
    return sheet


def write_predictions(output: Path, images: Sequence[Pixels], captions: Sequence[str]) -> None:
    """Draw images with their predictions, in rows."""
    pairs = zip(images, captions, strict=True)
    cells = [Cell(image.tobytes(), caption) for image, caption in pairs]
    columns = ceil(len(cells) ** 0.5)
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    if not rows:
        raise ConfigError("no image could be read, so there is no sheet to draw")
    _write(output, Sheet(images[0].shape[0], rows))


def _write(output: Path, sheet: Sheet) -> None:
    content = draw(sheet)
    with storage_errors("write", output):
        output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, [content])


def _training_sheet(config: RunConfig, request: SheetRequest) -> Sheet:
    """One row per sample, one column per epoch; the first samples of the first epoch."""
    opened = open_feed(config)
    if config.mixing.uses_mixing:
        return _mixed_sheet(opened, request)
    view, epochs = opened.view, range(request.epoch, request.epoch + request.columns)
    indices = _first_indices(opened, request.rows, request.epoch)
    ids = np.concatenate([opened.feed.order.ids(index) for index in indices])[: request.rows]
    columns = [_view_images(view, ids, epoch) for epoch in epochs]
    titles = [opened.source.class_names[label] for label in opened.source.labels(ids).tolist()]
    rows = [[Cell(image.tobytes()) for image in images] for images in zip(*columns, strict=True)]
    return Sheet(view.size, rows, titles, [f"epoch {epoch + 1}" for epoch in epochs])


def _mixed_sheet(opened: OpenFeed, request: SheetRequest) -> Sheet:
    """One column per epoch: its first images, each with its mixed labels."""
    config = opened.plan.config
    raw = replace(config.data, normalization_location="none", eight_bit_io=False)
    plain = feed_from_source(replace(config, data=raw), opened.source, torch.device("cpu"))
    epochs = range(request.epoch, request.epoch + request.columns)
    columns = [_cells(plain, _first_indices(plain, request.rows, epoch)) for epoch in epochs]
    rows = list(zip(*columns, strict=True))[: request.rows]
    titles = [f"epoch {epoch + 1}" for epoch in epochs]
    return Sheet(opened.plan.network.image_size, rows, column_titles=titles)


def _cells(opened: OpenFeed, indices: Iterator[MicroBatchIndex]) -> list[Cell]:
    names = opened.source.class_names
    cells = []
    for batch in opened.feed.micro_batches(indices, opened.options):
        assert batch.images is not None
        pixels = batch.images.round().to(torch.uint8).permute(0, 2, 3, 1)
        pairs = zip(pixels, _captions(batch, names), strict=True)
        cells += [Cell(image.numpy().tobytes(), caption) for image, caption in pairs]
    return cells


def _captions(batch: MicroBatch, names: tuple[str, ...]) -> Iterator[str]:
    """The labels of each image, the largest weight first."""
    assert batch.targets is not None
    mixed = batch.targets
    if isinstance(mixed, torch.Tensor):
        mixed = MixedTargets(mixed[None], torch.ones_like(mixed[None]))
    for labels, weights in zip(mixed.labels.T.tolist(), mixed.weights.T.tolist(), strict=True):
        sums: Counter[int] = Counter()
        for label, share in zip(labels, weights, strict=True):
            sums[label] += share
        yield ", ".join(f"{names[label]} {100 * share:.0f}" for label, share in sums.most_common())


def _first_indices(opened: OpenFeed, rows: int, epoch: int) -> Iterator[MicroBatchIndex]:
    size, per_epoch = opened.plan.batch.micro_batch_size, opened.micro_batches_per_epoch
    return opened.indices(per_epoch * epoch, min(-(-rows // size), per_epoch))


def _validation_sheet(config: RunConfig, request: SheetRequest) -> Sheet:
    """Random samples of the split, the same in every epoch."""
    network = plan_network(config)
    source = open_source(config.data, network, "validation")
    view = source.validation_view(config.data, network.image_size, make_ledger(config.data))
    ids = permutation(key(config.data.seed, "sheet"), len(source))[: request.rows * request.columns]
    names = [source.class_names[label] for label in source.labels(ids).tolist()]
    images = _view_images(view, ids, 0)
    cells = [Cell(image.tobytes(), name) for image, name in zip(images, names, strict=True)]
    starts = range(0, len(cells), request.columns)
    return Sheet(view.size, [cells[start : start + request.columns] for start in starts])


def _view_images(view: View, ids: Ids, epoch: int) -> Pixels:
    images = np.empty((len(ids), view.size, view.size, 3), np.uint8)
    view(ids, epoch, images)
    return images
