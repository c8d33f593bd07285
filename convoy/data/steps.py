"""A view taken in small steps, so that each can be timed: the same pixels, one step after another.

for step in walk(view, ids, epoch, out):  # `step` has just been done
"""

from collections.abc import Iterator

from convoy.data.images.gate import ImageError, look
from convoy.data.images.photo import crop, pixels_for, validation_photo
from convoy.data.photos import TrainingPhotos, ValidationPhotos
from convoy.data.records.record import BadRecordError
from convoy.data.source import Ids, Pixels
from convoy.data.view import Augmented, View

TAKE, READ, DECODE, CROP, AUGMENT, LOOK = "take", "read", "decode", "crop", "augment", "look"


def walk(view: View, ids: Ids, epoch: int, out: Pixels) -> Iterator[str]:
    """Does what the view does, and tells the name of each step when it is done."""
    match view:
        case Augmented():
            yield from _pixels(view, ids, epoch, out)
        case TrainingPhotos() | ValidationPhotos():
            yield from _photos(view, ids, epoch, out)
        case _:
            view(ids, epoch, out)
            yield LOOK


def _photos(
    view: TrainingPhotos | ValidationPhotos, ids: Ids, epoch: int, out: Pixels
) -> Iterator[str]:
    """What becomes of a bad record is the view's to say."""
    try:
        if isinstance(view, TrainingPhotos):
            yield from _windows(view, ids, epoch, out)
        else:
            yield from _middles(view, ids, out)
    except (BadRecordError, ImageError):
        view(ids, epoch, out)
        yield LOOK


def _windows(view: TrainingPhotos, ids: Ids, epoch: int, out: Pixels) -> Iterator[str]:
    """Photos with a random window."""
    records = [view.photos.records.read(number) for number in ids.tolist()]
    yield READ
    headers = [look(record.encoded) for record in records]
    yield DECODE
    draws = view.draws(headers, ids, epoch, records)
    yield CROP
    for record, header, (window, mirrored), room in zip(records, headers, draws, out, strict=True):
        pixels = pixels_for(record.encoded, header, window, view.size)
        yield DECODE
        crop(pixels, header, window, mirrored, room)
        yield CROP


def _middles(view: ValidationPhotos, ids: Ids, out: Pixels) -> Iterator[str]:
    """Photos with their middle: almost all of it is decoding."""
    records = [view.photos.records.read(number) for number in ids.tolist()]
    yield READ
    for record, room in zip(records, out, strict=True):
        validation_photo(record.encoded, view.size, room)
        yield DECODE


def _pixels(view: Augmented, ids: Ids, epoch: int, out: Pixels) -> Iterator[str]:
    """Images that lie in memory, or are made there."""
    taken = view.source.pixels(ids)
    yield TAKE
    out[:] = view.augmentation(taken, ids, view.seed, epoch)
    yield AUGMENT
