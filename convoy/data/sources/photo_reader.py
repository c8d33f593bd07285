"""From encoded photos to pixels of one size: a random window of each photo, or its centre."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from convoy.data.images.crop import CropRule, Window, training_windows
from convoy.data.images.header import Header, ImageError, read_header
from convoy.data.images.resize import crop, pixels_for, validation_photo, whole_photo
from convoy.data.records.record import BadRecordError, EncodedImage, Records
from convoy.data.source import Ids, Pixels
from convoy.data.sources.source import OnStep, no_steps


class PhotoReader(Protocol):
    """Reads, decodes and crops photos, safe from any thread."""

    def fill(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep) -> list[int]:
        """Write all photos that can be read; returns the positions of the others."""

    def fill_one(self, number: int, sample: int, epoch: int, out: Pixels) -> None:
        """Write record `number`, cropped like `sample`; raises BadRecordError if it is bad."""


@dataclass(frozen=True)
class PhotoOptions:
    """What decides the pixels, besides the photo and the epoch."""

    size: int
    seed: int = 0
    rule: str | None = None  # name of the `CropRule` of the random windows; None: the centre
    use_boxes: bool = False


def make_reader(
    records: Records, options: PhotoOptions, cropped: int | None = None
) -> "RandomCropReader | CenterCropReader":
    """`cropped` is the size of photos that were stored as their centres."""
    if options.rule is None:
        return CenterCropReader(records, options.size, cropped)
    return RandomCropReader(records, options)


@contextmanager
def _located(records: Records, number: int) -> Iterator[None]:
    """A decoder does not know where its photo was stored; the error says it."""
    try:
        yield
    except ImageError as error:
        raise BadRecordError(records.location(number), str(error)) from error


@dataclass(frozen=True)
class CenterCropReader:
    """The centre of each photo."""

    records: Records
    size: int
    cropped: int | None = None

    def fill(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> list[int]:
        del epoch
        failed = []
        for position, number in enumerate(ids.tolist()):
            try:
                record = self.records.read(number)
                on_step("read")
                self._write(record, out[position])
                on_step("decode")
            except (BadRecordError, ImageError):
                failed.append(position)
        return failed

    def fill_one(self, number: int, sample: int, epoch: int, out: Pixels) -> None:
        del sample, epoch
        record = self.records.read(number)
        with _located(self.records, number):
            self._write(record, out)

    def _write(self, record: EncodedImage, out: Pixels) -> None:
        if self.cropped == self.size:
            whole_photo(record.encoded, out)
        else:
            validation_photo(record.encoded, self.size, out)


class RandomCropReader:
    """A random window of each photo, half of them mirrored."""

    def __init__(self, records: Records, options: PhotoOptions) -> None:
        assert options.rule is not None
        self.records = records
        self.options = options
        self._rule = CropRule[options.rule]

    def fill(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> list[int]:
        """Headers first: the windows of a whole batch are drawn at once."""
        opened: dict[int, tuple[EncodedImage, Header]] = {}
        for position, number in enumerate(ids.tolist()):
            try:
                record = self.records.read(number)
                on_step("read")
                opened[position] = record, read_header(record.encoded)
                on_step("decode")
            except (BadRecordError, ImageError):
                continue
        windows = self._windows(list(opened.values()), ids[list(opened)], epoch)
        on_step("crop")
        failed = set(range(len(ids))) - set(opened)
        for (position, (record, header)), window in zip(opened.items(), windows, strict=True):
            try:
                self._write(record, header, window, out[position], on_step)
            except ImageError:
                failed.add(position)
        return sorted(failed)

    def fill_one(self, number: int, sample: int, epoch: int, out: Pixels) -> None:
        record = self.records.read(number)
        with _located(self.records, number):
            header = read_header(record.encoded)
            (window,) = self._windows([(record, header)], np.array([sample]), epoch)
            self._write(record, header, window, out, no_steps)

    def _windows(
        self, opened: Sequence[tuple[EncodedImage, Header]], ids: Ids, epoch: int
    ) -> list[tuple[Window, bool]]:
        """The window of each photo, and whether it is mirrored."""
        if not opened:
            return []
        sizes = np.array([(header.height, header.width) for _, header in opened], np.int64)
        boxes = [record.boxes for record, _ in opened] if self.options.use_boxes else None
        seed = self.options.seed
        windows, mirrored = training_windows(sizes, ids, seed, epoch, self._rule, boxes)
        return [
            (Window(*window), flipped)
            for window, flipped in zip(windows.tolist(), mirrored.tolist(), strict=True)
        ]

    def _write(
        self,
        record: EncodedImage,
        header: Header,
        window: tuple[Window, bool],
        out: Pixels,
        on_step: OnStep,
    ) -> None:
        pixels = pixels_for(record.encoded, header, window[0], self.options.size)
        on_step("decode")
        crop(pixels, header, *window, out)
        on_step("crop")
