"""`shapes`, the built-in data set: ten drawn shapes in noisy scenes, made when they are asked for.

Each image is a pure function of (seed, split, sample id). Pixels see only operations that IEEE 754
rounds exactly (no sine, no exponential), so neither batch, thread nor machine changes a byte.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from convoy import chance
from convoy.data.outlines import OUTLINES, Field, box
from convoy.data.source import Ids, Labels, Normalization, Pixels

SPLITS = ("train", "validation")
SMALLEST, LARGEST = 8, 512  # image sizes

_CHUNK = 2**16  # pixels drawn together: the dozen fields of a scene then stay in a core's cache
_TURNS = 1536  # directions: 3 · 2^9, so that a third and a quarter of a turn are whole
# Rounded to six digits: libraries that differ in the last bit of a cosine agree on these.
_COSINES = np.cos(np.arange(_TURNS) * (2.0 * np.pi / _TURNS)).round(6).astype(np.float32)

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

    def turn(self, name: str) -> Turn:
        """Any direction."""
        return chance.integers(chance.key(*self.stream, name), _TURNS, self.ids)

    def noise(self, channels: int, size: int) -> npt.NDArray[np.uint8]:
        """A byte for every value of a picture: (channels, batch, height, width)."""
        values = channels * size * size
        words = np.arange(-(-values // 8))
        drawn = chance.bits(chance.key(*self.stream, "noise"), self.ids[:, 0], words)
        drawn = drawn.astype("<u8", copy=False).view(np.uint8)[:, :values]
        return drawn.reshape(-1, channels, size, size).swapaxes(0, 1)


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
        share: Field = np.clip(0.5 - distance * (1.0 / self.pixel), 0.0, 1.0)
        return share


def picture(size: int) -> Frame:
    """The frame of the picture itself: −1 … 1 from edge to edge, to the right and upwards."""
    middles = ((np.arange(size) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    return Frame(middles[None, None, :], -middles[None, :, None], np.float32([[[2.0 / size]]]))


def tint(dice: Dice, name: str, strongest: float) -> Field:
    """A push towards some hue that leaves the lightness alone: (3, batch, 1, 1)."""
    hue = dice.turn(f"{name} hue")
    thirds = [_COSINES[(hue + third * (_TURNS // 3)) % _TURNS] for third in range(3)]
    return dice.between(f"{name} tint", 0.0, strongest) * np.stack(thirds)


def color(dice: Dice, name: str, step: float) -> Field:
    """A color whose lightness is about a given step from the background's: (3, batch, 1, 1).

    Steps go round a circle on which black follows white. So steps of a third keep three things
    apart, and yet no lightness tells which of them a pixel belongs to.
    """
    place = dice.between("lightness", 0.0, 1.0) + dice.between(name, step - 0.05, step + 0.05)
    return 0.05 + 0.9 * (place - np.floor(place)) + tint(dice, name, 0.3)


def background(dice: Dice, frame: Frame) -> Field:
    """Soft stripes, over a slow change of hue across the picture: (3, batch, height, width)."""
    middle = dice.between("stripe shift", -1.0, 1.0)
    along = frame.around(middle, middle, dice.turn("stripes"), dice.between("stripe", 0.2, 0.8))
    stripes = np.abs(along.x - np.floor(along.x) - 0.5) * dice.between("stripe depth", 0.0, 0.2)
    drift = frame.around(middle, middle, dice.turn("drift"), np.float32([[[1.0]]]))
    return color(dice, "background", 0.0) + stripes + drift.x * tint(dice, "drift", 0.15)


def distractor(dice: Dice, frame: Frame) -> Field:
    """A stick behind the shape, in seven of ten scenes: how much of each pixel it covers."""
    x, y = dice.between("stick x", -0.9, 0.9), dice.between("stick y", -0.9, 0.9)
    stick = frame.around(x, y, dice.turn("stick turn"), dice.between("stick", 0.2, 0.6))
    return stick.cover(box(stick.x, stick.y, 1.0, 0.2)) * dice.happens("stick seen", 0.7)


def shape(labels: Labels, frame: Frame) -> Field:
    """The shape that gives the scene its label: how much of each pixel it covers."""
    cover = np.empty((len(labels), frame.y.shape[1], frame.x.shape[2]), np.float32)
    for label, outline in enumerate(OUTLINES.values()):
        own = np.flatnonzero(labels == label)
        thing = Frame(frame.x[own], frame.y[own], frame.pixel[own])
        cover[own] = thing.cover(outline(thing.x, thing.y))
    return cover


def occluder(dice: Dice, frame: Frame) -> Field:
    """A bar across the shape, in half of the scenes: how much of each pixel it covers."""
    x, y = dice.between("bar x", -0.5, 0.5), dice.between("bar y", -0.5, 0.5)
    bar = frame.around(x, y, dice.turn("bar turn"), dice.between("bar", 0.08, 0.14))
    return bar.cover(np.abs(bar.x) - 1.0) * dice.happens("bar seen", 0.5)


def paint(canvas: Field, hue: Field, cover: Field) -> None:
    """Lay a color over the canvas, as densely as `cover` says."""
    canvas += (hue - canvas) * cover


def scenes(dice: Dice, labels: Labels, size: int) -> Pixels:
    """Pictures, painted from back to front, then lit, then seen by a noisy camera."""
    whole = picture(size)
    radius = dice.between("radius", 0.5, 0.8)
    room = 1.0 - 0.9 * radius
    x, y = dice.between("x", -1.0, 1.0) * room, dice.between("y", -1.0, 1.0) * room
    frame = whole.around(x, y, dice.turn("turn"), radius)
    canvas = background(dice, whole)
    paint(canvas, color(dice, "distractor", 0.17), distractor(dice, whole))
    paint(canvas, color(dice, "shape", 1 / 3), shape(labels, frame))
    paint(canvas, color(dice, "occluder", 2 / 3), occluder(dice, frame))
    return photograph(dice, canvas)


def photograph(dice: Dice, canvas: Field) -> Pixels:
    """Brightness and noise, different in each picture; then bytes."""
    gain = dice.between("brightness", 0.8, 1.1) * 255.0
    grain = dice.between("grain", 0.05, 0.25)
    canvas *= gain
    canvas += (dice.noise(3, canvas.shape[-1]) - np.float32(127.5)) * grain
    np.clip(canvas, 0.0, 255.0, out=canvas)
    return np.moveaxis(canvas.astype(np.uint8), 0, -1)


class Shapes:
    """One split of the data set: `samples` scenes, from the scene `first_id` on."""

    class_names = tuple(OUTLINES)
    normalization = Normalization((0.47, 0.47, 0.47), (0.27, 0.27, 0.27))

    def __init__(
        self,
        samples: int,
        image_size: int = 32,
        seed: int = 0,
        split: str = "train",
        first_id: int = 0,
    ) -> None:
        self.image_size = image_size
        self._samples = samples
        self._stream = (seed, "shapes", split)
        self._first_id = first_id

    def __len__(self) -> int:
        return self._samples

    def pixels(self, ids: Ids) -> Pixels:
        size = self.image_size
        drawn = np.empty((len(ids), size, size, 3), np.uint8)
        together = max(1, _CHUNK // size**2)
        for start in range(0, len(ids), together):
            some = ids[start : start + together]
            dice = Dice(self._stream, some + self._first_id)
            drawn[start : start + together] = scenes(dice, self.labels(some), size)
        return drawn

    def labels(self, ids: Ids) -> Labels:
        """Classes take turns, so that every run of ids holds them in equal shares."""
        return (ids + self._first_id) % len(self.class_names)
