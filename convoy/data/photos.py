"""Encoded images behind the face of a source, and the two views of them.

    Records ─→ Photos ─┬─→ TrainingPhotos     a random window of each, by (seed, epoch, sample id)
                       └─→ ValidationPhotos   the middle of each

A record that cannot be used ends the run, or its place is taken by another of its class.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from convoy.data.images.gate import Header, ImageError, look
from convoy.data.images.photo import training_photo, validation_photo, whole_photo
from convoy.data.images.window import Rule, Window, training_windows
from convoy.data.records.ledger import BadRecord, Ledger
from convoy.data.records.record import UNKNOWN, BadRecordError, Record, Records
from convoy.data.records.stand_ins import StandIns
from convoy.data.source import Ids, Labels, Normalization, Pixels, Source, Split
from convoy.data.view import Unread
from convoy.errors import DataError

IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Of applications that take away the mean alone, which they knew in another rounding.
IMAGENET_MEAN = Normalization((123.68 / 255, 116.78 / 255, 103.94 / 255), (1 / 255,) * 3)

Reading = Callable[[int], None]  # puts the record of that number where it belongs


@contextmanager
def _named(photos: "Photos", number: int) -> Iterator[None]:
    """Whoever decodes an image does not know where it lies."""
    try:
        yield
    except ImageError as error:
        raise BadRecordError(photos.records.spot(number), str(error)) from error


class Photos:
    """One split of encoded images."""

    normalization = IMAGENET

    def __init__(self, records: Records, split: Split, cropped: int | None = None) -> None:
        """`cropped` is the side of the middles that were stored instead of whole images."""
        self.records = records
        self.cropped = cropped
        self.split = split
        self.class_names = records.class_names
        self.stand_ins = StandIns(records.labels)

    def __len__(self) -> int:
        return len(self.records)

    def labels(self, ids: Ids) -> Labels:
        return self.stand_ins.labels.take(ids)


AnySource = Source | Photos


@dataclass(frozen=True)
class Tolerance:
    """What happens to records that cannot be used: with no ledger they end the run."""

    ledger: Ledger | None = None

    def read(self, photos: Photos, number: int, reading: Reading) -> bool:
        """Whether the record itself could be read; if not, another of its class was."""
        try:
            reading(number)
        except BadRecordError as error:
            if self.ledger is None:
                raise
            self.ledger.add(BadRecord.of(error, photos.split))
            self._stand_in(photos, number, reading)
            return False
        return True

    def _stand_in(self, photos: Photos, number: int, reading: Reading) -> None:
        for candidate in photos.stand_ins.after(number):
            try:
                return reading(candidate)
            except BadRecordError:
                continue  # it is told when its own turn comes
        label = photos.class_names[photos.stand_ins.labels[number]]
        raise DataError(
            f"{photos.records.spot(number)}: bad, and so are all others of its class {label}"
        )


STRICT = Tolerance()


def judge_known(photos: Photos, tolerance: Tolerance) -> None:
    """Records that are known to be bad before the first one is used."""
    known = np.flatnonzero(photos.records.labels == UNKNOWN).tolist()
    for number in known:
        try:
            photos.records.read(number)
        except BadRecordError as error:
            if tolerance.ledger is None:
                raise DataError(
                    f"{error}; {len(known)} bad in the {photos.split} split: `convoy data verify` "
                    "lists them, --bad-records skip does without"
                ) from error
            tolerance.ledger.add(BadRecord.of(error, photos.split))


@dataclass(frozen=True)
class TrainingPhotos:
    """A view with a random window of each photo, half of them mirrored."""

    photos: Photos
    size: int
    seed: int
    rule: Rule = Rule.PYTORCH
    use_boxes: bool = False
    tolerance: Tolerance = STRICT

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> Unread:
        """Headers first: the windows of a whole batch are drawn at once."""
        opened = [self._opened(int(number)) for number in ids]
        good = np.array([place for place, one in enumerate(opened) if one is not None], np.int64)
        some = [one for one in opened if one is not None]
        draws = self.draws([one[1] for one in some], ids[good], epoch, [one[0] for one in some])
        left = set(range(len(ids))) - set(good.tolist())
        for place, (record, header), draw in zip(good.tolist(), some, draws, strict=True):
            try:
                training_photo(record.encoded, header, *draw, self.size, out[place])
            except ImageError:
                left.add(place)
        slots = [(place, ids[place : place + 1]) for place in sorted(left)]
        return tuple(place for place, slot in slots if not self._alone(slot, epoch, out[place]))

    def _opened(self, number: int) -> tuple[Record, Header] | None:
        """None for what is bad; that is judged when it is read again, alone."""
        try:
            record = self.photos.records.read(number)
            return record, look(record.encoded)
        except (BadRecordError, ImageError):
            return None

    def _alone(self, slot: Ids, epoch: int, out: Pixels) -> bool:
        """One place that was not filled with the others: was it after all, by its own sample?"""
        reading = partial(self.one, int(slot[0]), epoch, out)
        return self.tolerance.read(self.photos, int(slot[0]), reading)

    def one(self, slot: int, epoch: int, out: Pixels, number: int) -> None:
        """A record in the place of a sample, whose chance it takes; BadRecordError if it is bad."""
        record = self.photos.records.read(number)
        with _named(self.photos, number):
            header = look(record.encoded)
            (draw,) = self.draws([header], np.array([slot]), epoch, [record])
            training_photo(record.encoded, header, *draw, self.size, out)

    def draws(
        self, headers: Sequence[Header], ids: Ids, epoch: int, records: Sequence[Record]
    ) -> list[tuple[Window, bool]]:
        """The window of each photo, and whether it is mirrored."""
        if not headers:
            return []
        sizes = np.array([(header.height, header.width) for header in headers], np.int64)
        boxes = [record.boxes for record in records] if self.use_boxes else None
        windows, mirrored = training_windows(sizes, ids, self.seed, epoch, self.rule, boxes)
        return [
            (Window(*window), turned)
            for window, turned in zip(windows.tolist(), mirrored.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class ValidationPhotos:
    """A view with the middle of each photo."""

    photos: Photos
    size: int
    tolerance: Tolerance = STRICT

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> Unread:
        return tuple(
            place
            for place, number in enumerate(ids.tolist())
            if not self.tolerance.read(
                self.photos, number, partial(self.one, number, epoch, out[place])
            )
        )

    def one(self, slot: int, epoch: int, out: Pixels, number: int) -> None:
        """A record in the place of a sample; BadRecordError if it is bad."""
        del slot, epoch
        record = self.photos.records.read(number)
        with _named(self.photos, number):
            if self.photos.cropped == self.size:
                whole_photo(record.encoded, out)
            else:
                validation_photo(record.encoded, self.size, out)
