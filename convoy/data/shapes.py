"""`shapes`, the built-in data set: ten drawn shapes in noisy scenes, made when they are asked for.

Each image is a pure function of (seed, split, sample id). Pixels see only operations that IEEE 754
rounds exactly (no sine, no exponential), so neither batch, thread nor machine changes a byte.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from convoy import chance
from convoy.data.outlines import OUTLINES, Field, box
from convoy.data.source import Ids, Labels, Normalization, Pixels, Split
from convoy.errors import ConfigError, DataError

SMALLEST = 8  # pixels a side: on fewer, not even the ring has a hole

_CHUNK = 2**16  # pixels drawn together: the fields of these scenes stay in a core's own cache
_TURNS = 1536  # directions: 3 · 2^9, so that a third and an eighth of a turn are whole
# Rounded to six digits: libraries that differ in the last bit of a cosine agree on these.
_COSINES = np.cos(np.arange(_TURNS) * (2.0 * np.pi / _TURNS)).round(6).astype(np.float32)
_ONE = np.ones((1, 1, 1), np.float32)

Turn = npt.NDArray[np.int64]  # (batch, 1, 1), places in the table of cosines


class Dice:
    """Named draws for a batch of scenes, a number for each: (batch, 1, 1)."""

    def __init__(self, stream: tuple[int | str, ...], ids: Ids) -> None:
        self.stream = stream
        self.ids = ids[:, None, None]

    def between(self, name: str, low: float, high: float) -> Field:
        """Evenly spread from `low` to `high`."""
        drawn = chance.uniform(chance.key(*self.stream, name), self.ids)
        return (low + (high - low) * drawn).astype(np.float32)

    def happens(self, name: str, share: float) -> Field:
        """One in that share of the scenes, zero in the others."""
        return (self.between(name, 0.0, 1.0) < share).astype(np.float32)

    def turn(self, name: str, most: int = _TURNS // 2) -> Turn:
        """Any direction, or one that is at most so far from upright."""
        return chance.integers(chance.key(*self.stream, name), 2 * most, self.ids) - most

    def noise(self, channels: int, size: int) -> npt.NDArray[np.uint8]:
        """A byte for every value of a picture: (channels, batch, height, width)."""
        values = channels * size * size
        words = np.arange(-(-values // 8))
        drawn = chance.bits(chance.key(*self.stream, "noise"), self.ids[:, 0], words)
        values_of_each = drawn.astype("<u8", copy=False).view(np.uint8)[:, :values]
        return values_of_each.reshape(-1, channels, size, size).swapaxes(0, 1)


class Frame(NamedTuple):
    """Where each pixel lies as a thing in the scene sees it: itself upright around the origin."""

    x: Field
    y: Field
    pixel: Field  # the width of one, in the thing's own unit

    def around(self, x: Field, y: Field, turn: Turn, unit: Field) -> "Frame":
        """The frame of a thing that stands at (x, y), turned, and is `unit` in size."""
        cosine, sine = _COSINES[turn] / unit, _COSINES[turn - _TURNS // 4] / unit
        # Columns and rows are turned apart, so that only one addition sees every pixel.
        right, up = self.x - x, self.y - y
        return Frame(right * cosine + up * sine, up * cosine - right * sine, self.pixel / unit)

    def cover(self, distance: Field) -> Field:
        """The share of each pixel that lies inside: an edge is one pixel wide."""
        return np.clip(0.5 - distance * (1.0 / self.pixel), 0.0, 1.0)


def picture(size: int) -> Frame:
    """The frame of the picture itself: −1 … 1 from edge to edge, to the right and upwards."""
    middles = ((np.arange(size) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    return Frame(middles[None, None, :], -middles[None, :, None], _ONE * (2.0 / size))


def tint(dice: Dice, name: str, strongest: float) -> Field:
    """A push towards some hue that leaves the lightness alone: (3, batch, 1, 1)."""
    hue = dice.turn(f"{name} hue")
    thirds = [_COSINES[(hue + third * (_TURNS // 3)) % _TURNS] for third in range(3)]
    return np.multiply(dice.between(f"{name} tint", 0.0, strongest), thirds)


def color(dice: Dice, name: str, step: float) -> Field:
    """A color whose lightness is about a given step from the background's: (3, batch, 1, 1).

    Steps go round a circle on which black follows white: half of it is the same contrast for
    every background, and yet no lightness tells a shape from a background.
    """
    place = dice.between("lightness", 0.0, 1.0) + dice.between(name, step - 0.05, step + 0.05)
    return tint(dice, name, 0.25) + (place - np.floor(place)) * 0.9 + 0.05


def background(dice: Dice, frame: Frame) -> Field:
    """Soft stripes, over a slow change of hue across the picture: (3, batch, height, width)."""
    middle = dice.between("stripe shift", -1.0, 1.0)
    along = frame.around(middle, middle, dice.turn("stripes"), dice.between("stripe", 0.2, 0.8))
    stripes = np.abs(along.x - np.floor(along.x) - 0.5) * dice.between("stripe depth", 0.0, 0.1)
    drift = frame.around(middle, middle, dice.turn("drift"), _ONE)
    canvas: Field = drift.x * tint(dice, "drift", 0.15) + stripes
    return canvas + color(dice, "background", 0.0)


def distractor(dice: Dice, frame: Frame) -> Field:
    """A stick anywhere, in six of ten scenes: how much of each pixel it covers."""
    x, y = dice.between("stick x", -0.9, 0.9), dice.between("stick y", -0.9, 0.9)
    stick = frame.around(x, y, dice.turn("stick turn"), dice.between("stick", 0.2, 0.6))
    return stick.cover(box(stick.x, stick.y, 1.0, 0.2)) * dice.happens("stick seen", 0.6)


def standing(dice: Dice, frame: Frame) -> Frame:
    """The frame of the shape: anywhere inside, up to an eighth of a turn from upright."""
    radius = dice.between("radius", 0.6, 0.8)
    room = 1.0 - 0.9 * radius
    x, y = dice.between("x", -1.0, 1.0) * room, dice.between("y", -1.0, 1.0) * room
    return frame.around(x, y, dice.turn("turn", _TURNS // 8), radius)


def shape(labels: Labels, frame: Frame) -> Field:
    """The shape that gives the scene its label: how much of each pixel it covers."""
    cover = np.empty(frame.x.shape, np.float32)
    for label, outline in enumerate(OUTLINES.values()):
        own = np.flatnonzero(labels == label)
        thing = Frame(frame.x[own], frame.y[own], frame.pixel[own])
        cover[own] = thing.cover(outline(thing.x, thing.y))
    return cover


def occluder(dice: Dice, frame: Frame) -> Field:
    """A short bar before the shape, in four of ten scenes: how much of each pixel it covers."""
    x, y = dice.between("bar x", -0.5, 0.5), dice.between("bar y", -0.5, 0.5)
    bar = frame.around(x, y, dice.turn("bar turn"), dice.between("bar", 0.3, 0.6))
    return bar.cover(box(bar.x, bar.y, 1.0, 0.3)) * dice.happens("bar seen", 0.4)


def paint(canvas: Field, pigment: Field, cover: Field) -> None:
    """Lay a color over the canvas, as densely as `cover` says."""
    canvas += (pigment - canvas) * cover


def photograph(dice: Dice, canvas: Field) -> Pixels:
    """Brightness and noise, different in each picture; then bytes."""
    canvas *= dice.between("brightness", 0.8, 1.1) * 255.0
    noise = dice.noise(3, canvas.shape[-1]) - np.float32(127.5)
    canvas += noise * dice.between("grain", 0.02, 0.12)
    np.clip(canvas, 0.0, 255.0, out=canvas)
    return np.moveaxis(canvas.astype(np.uint8), 0, -1)


def draw(dice: Dice, labels: Labels, size: int) -> Pixels:
    """Scenes, painted from back to front, then seen by a camera."""
    whole = picture(size)
    place = standing(dice, whole)
    canvas = background(dice, whole)
    paint(canvas, color(dice, "distractor", 0.17), distractor(dice, whole))
    paint(canvas, color(dice, "shape", 0.5), shape(labels, place))
    paint(canvas, color(dice, "occluder", 0.75), occluder(dice, place))
    return photograph(dice, canvas)


class Shapes:
    """One split, of as many samples as wanted; a longer one begins like a shorter one."""

    class_names = tuple(OUTLINES)
    normalization = Normalization((0.477, 0.477, 0.477), (0.263, 0.263, 0.263))  # measured

    def __init__(
        self, samples: int, image_size: int = 32, seed: int = 0, split: Split = "train"
    ) -> None:
        if samples < 1:
            raise ConfigError(f"shapes needs at least one sample, got {samples}; raise --samples")
        if image_size < SMALLEST:
            raise ConfigError(
                f"shapes needs images of at least {SMALLEST} pixels a side, got {image_size}; "
                f"raise --image-size"
            )
        self.image_size = image_size
        self._samples = samples
        self._stream = (seed, "shapes", split)

    def __len__(self) -> int:
        return self._samples

    def pixels(self, ids: Ids) -> Pixels:
        size = self.image_size
        labels = self.labels(ids)
        drawn = np.empty((len(ids), size, size, 3), np.uint8)
        together = max(1, _CHUNK // size**2)
        for start in range(0, len(ids), together):
            some = slice(start, start + together)
            drawn[some] = draw(Dice(self._stream, ids[some]), labels[some], size)
        return drawn

    def labels(self, ids: Ids) -> Labels:
        """The classes take turns, so that every run of ids holds equal shares of them."""
        if len(ids) and (ids.min() < 0 or ids.max() >= self._samples):
            raise DataError(
                f"shapes was opened with the samples 0 … {self._samples - 1} "
                f"but asked for {ids.min()} … {ids.max()}; raise --samples"
            )
        return ids % len(self.class_names)
