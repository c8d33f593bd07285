"""Samples exactly as training or validation sees them, as a contact sheet."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from math import ceil
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from convoy.config.schema import RunConfig
from convoy.data.feeds import ledger_of
from convoy.data.loader import MicroBatch, MicroBatchIndex
from convoy.data.source import Ids, Pixels, Split, View
from convoy.data.sources.open import open_source
from convoy.errors import ConfigError
from convoy.files import check_output, storage_errors, write_atomically
from convoy.models.network import plan_network
from convoy.rng import key, permutation
from convoy.run.open_feed import OpenFeed, feed_of, open_feed
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


def draw(sheet: Sheet) -> bytes:
    """The file's content; the same sheet gives the same bytes."""
    square = sheet.side * max(1, _LEAST_SIDE // sheet.side)
    widest = max(ceil(_font().getlength(one_line(row.name))) for row in sheet.rows)
    left = min(widest + 3 * _GAP, _MARGIN) if widest else _GAP
    top = _LINE + _GAP if sheet.heads else _GAP
    captions = any(cell.caption for row in sheet.rows for cell in row.cells)
    across, down = square + _GAP, square + _GAP + (_LINE if captions else 0)
    width = left + across * max(len(row.cells) for row in sheet.rows)
    height = top + down * len(sheet.rows)
    if width * height > MOST_PIXELS:
        raise ConfigError(
            f"a sheet of {width:,} × {height:,} pixels is too large, "
            f"{MOST_PIXELS:,} is the most; use fewer --rows or --columns"
        )
    picture = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(picture)
    for column, head in enumerate(sheet.heads):
        _write(pen, (left + column * across, _GAP // 2), head, square)
    for y, row in zip(range(top, height, down), sheet.rows, strict=True):
        _write(pen, (_GAP, y + (square - _LINE) // 2), row.name, left - 2 * _GAP)
        for column, cell in enumerate(row.cells):
            x = left + column * across
            image = Image.frombytes("RGB", (sheet.side, sheet.side), cell.pixels)
            picture.paste(image.resize((square, square), Image.Resampling.NEAREST), (x, y))
            _write(pen, (x, y + square), cell.caption, square)
    content = BytesIO()
    picture.save(content, "PNG", optimize=True)
    return content.getvalue()


def _write(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int) -> None:
    """A line that keeps within its width."""
    shown = one_line(text)
    while shown and _font().getlength(shown) > width:
        shown = shown[:-2] + "…" if len(shown) > 2 else ""
    pen.text(at, shown, _INK, _font())


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT)


@dataclass(frozen=True)
class SheetWish:
    """What shall be on it, and where it is written."""

    output: Path
    rows: int
    columns: int
    epoch: int  # the first one shown, from 0
    split: Split
    override: bool


def write_sheet(config: RunConfig, wish: SheetWish) -> Sheet:
    check_output(wish.output, wish.override)
    sheet = (_training if wish.split == "train" else _validation)(config, wish)
    content = draw(sheet)
    with storage_errors("write", wish.output):
        wish.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(wish.output, [content])
    return sheet


def _training(config: RunConfig, wish: SheetWish) -> Sheet:
    """One row a sample, one column an epoch: the samples with which the first of them begins."""
    opened = open_feed(config)
    if config.mixing.mixes:
        return _mixed(opened, wish)
    view, epochs = opened.view, range(wish.epoch, wish.epoch + wish.columns)
    indices = _first_indices(opened, wish.rows, wish.epoch)
    ids = np.concatenate([opened.feed.order.ids(index) for index in indices])[: wish.rows]
    seen = [_seen(view, ids, epoch) for epoch in epochs]
    names = [opened.source.class_names[label] for label in opened.source.labels(ids).tolist()]
    rows = (
        Row(tuple(Cell(images[number].tobytes()) for images in seen), name)
        for number, name in enumerate(names)
    )
    return Sheet(view.size, tuple(rows), tuple(f"epoch {epoch + 1}" for epoch in epochs))


def _mixed(opened: OpenFeed, wish: SheetWish) -> Sheet:
    """One column an epoch: the images with which it begins, each with the labels that share it."""
    config = opened.plan.config
    raw = replace(config.data, normalization_location="none", eight_bit_io=False)
    plain = feed_of(replace(config, data=raw), opened.source, torch.device("cpu"))
    epochs = range(wish.epoch, wish.epoch + wish.columns)
    columns = [_cells(plain, _first_indices(plain, wish.rows, epoch)) for epoch in epochs]
    rows = list(zip(*columns, strict=True))[: wish.rows]
    heads = tuple(f"epoch {epoch + 1}" for epoch in epochs)
    return Sheet(opened.plan.network.image_size, tuple(map(Row, rows)), heads)


def _cells(opened: OpenFeed, indices: Iterator[MicroBatchIndex]) -> list[Cell]:
    names = opened.source.class_names
    cells = []
    for batch in opened.feed.micro_batches(indices, opened.options):
        assert batch.images is not None
        pixels = batch.images.round().to(torch.uint8).permute(0, 2, 3, 1)
        pairs = zip(pixels, _captions(batch, names), strict=True)
        cells += [Cell(image.numpy().tobytes(), caption) for image, caption in pairs]
    return cells


def _captions(one: MicroBatch, names: tuple[str, ...]) -> Iterator[str]:
    """The labels of each image, the largest share first."""
    assert one.labels is not None
    labels = one.labels if one.shares is not None else one.labels[None]
    shares = one.shares if one.shares is not None else torch.ones_like(labels)
    for own, parts in zip(labels.T.tolist(), shares.T.tolist(), strict=True):
        sums: Counter[int] = Counter()
        for label, share in zip(own, parts, strict=True):
            sums[label] += share
        yield ", ".join(f"{names[label]} {100 * share:.0f}" for label, share in sums.most_common())


def _first_indices(opened: OpenFeed, rows: int, epoch: int) -> Iterator[MicroBatchIndex]:
    each, per_epoch = opened.plan.batch.micro_batch_size, opened.elements_per_epoch
    return opened.indices(per_epoch * epoch, min(-(-rows // each), per_epoch))


def _validation(config: RunConfig, wish: SheetWish) -> Sheet:
    """Samples from anywhere in the split; no epoch changes them."""
    network = plan_network(config)
    source = open_source(config.data, network, "validation")
    view = source.validation_view(config.data, network.image_size, ledger_of(config.data))
    ids = permutation(key(config.data.seed, "sheet"), len(source))[: wish.rows * wish.columns]
    names = [source.class_names[label] for label in source.labels(ids).tolist()]
    images = _seen(view, ids, 0)
    cells = [Cell(one.tobytes(), name) for one, name in zip(images, names, strict=True)]
    starts = range(0, len(cells), wish.columns)
    return Sheet(view.size, tuple(Row(tuple(cells[at : at + wish.columns])) for at in starts))


def _seen(view: View, ids: Ids, epoch: int) -> Pixels:
    images = np.empty((len(ids), view.size, view.size, 3), np.uint8)
    view(ids, epoch, images)
    return images
