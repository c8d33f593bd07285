"""Ten outlines as signed distances: below zero inside, above zero outside, one slope at the edge.

In come coordinates, the shape upright within the unit circle; out comes one distance a point.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from convoy.data.source import Ids, Labels, Normalization, Pixels, Split
from convoy.data.sources.pixel_source import PixelSource
from convoy.errors import ConfigError, DataError
from convoy.rng import bits, integers, key, uniform

# (batch, height, width), or what broadcasts to it; in fact 32-bit, which the stubs cannot follow.
Field = npt.NDArray[np.floating[Any]]
Outline = Callable[[Field, Field], Field]


def length(x: Field, y: Field) -> Field:
    distance: Field = np.sqrt(x * x + y * y)
    return distance


def box(x: Field, y: Field, wide: Field | float, high: Field | float) -> Field:
    """An upright rectangle of half-sizes `wide` and `high` around the origin."""
    edge: Field = np.maximum(np.abs(x) - wide, np.abs(y) - high)
    return edge


def disc(x: Field, y: Field) -> Field:
    return length(x, y) - 0.86


def square(x: Field, y: Field) -> Field:
    return box(x, y, 0.74, 0.74)


def triangle(x: Field, y: Field) -> Field:
    """Equal sides; (√3/2, 1/2) is the normal of the two upper ones."""
    edge: Field = np.maximum(np.abs(x) * 0.866025 + y * 0.5, -y) - 0.52
    return edge


def star(x: Field, y: Field) -> Field:
    """Five points: folded over its mirror lines until one edge is left."""
    x = np.abs(x)
    for normal_x in (0.809017, -0.809017):  # the mirrors at ±36° from upright: (cos 36°, −sin 36°)
        beyond = 2.0 * np.maximum(normal_x * x - 0.587785 * y, 0.0)
        x = x - normal_x * beyond
        y = y + 0.587785 * beyond
    return np.abs(x) * 0.833 + (y - 1.0) * 0.553


def cross(x: Field, y: Field) -> Field:
    union: Field = np.minimum(box(x, y, 0.94, 0.27), box(x, y, 0.27, 0.94))
    return union


def ring(x: Field, y: Field) -> Field:
    edge: Field = np.abs(length(x, y) - 0.7) - 0.2
    return edge


def crescent(x: Field, y: Field) -> Field:
    """A disc that lost a smaller one at its side."""
    edge: Field = np.maximum(length(x + 0.12, y) - 0.88, 0.72 - length(x - 0.34, y))
    return edge


def heart(x: Field, y: Field) -> Field:
    """Two discs; a kite joins their cleft (0, 0.6) to the tip (0, −0.787), touching them."""
    x = np.abs(x)
    lobes = length(x - 0.44, y - 0.36) - 0.5
    kite = np.maximum((x - y - 0.787) * 0.707107, x * 0.601 + (y - 0.6) * 0.7993)
    union: Field = np.minimum(kite, lobes)
    return union


def arrow(x: Field, y: Field) -> Field:
    """A triangle (tip 0.95, base 0.0, half as wide 0.74) on a shaft."""
    head = np.maximum((np.abs(x) * 0.95 + (y - 0.95) * 0.74) * 0.83045, -y)
    union: Field = np.minimum(head, box(x, y + 0.45, 0.24, 0.48))
    return union


def hourglass(x: Field, y: Field) -> Field:
    """Two triangles that meet at their tips, with a waist wide enough to see."""
    y = np.abs(y)
    edge: Field = np.maximum(y - 0.82, (np.abs(x) - 0.78 * y - 0.07) * 0.788)
    return edge


_OUTLINES = (disc, square, triangle, star, cross, ring, crescent, heart, arrow, hourglass)
OUTLINES: dict[str, Outline] = {outline.__name__: outline for outline in _OUTLINES}

SMALLEST = 8  # pixels a side: on fewer, not even the ring has a hole

_CHUNK = 2**16  # pixels drawn together: the fields of these scenes stay in a core's own cache
_TURNS = 1536  # directions: 3 · 2^9, so that a third and an eighth of a turn are whole
# Rounded to six digits: libraries that differ in the last bit of a cosine agree on these.
_COSINES = np.cos(np.arange(_TURNS) * (2.0 * np.pi / _TURNS)).round(6).astype(np.float32)
_ONE = np.ones((1, 1, 1), np.float32)

Turn = npt.NDArray[np.int64]  # (batch, 1, 1), places in the table of cosines


class SceneRng:
    """Named draws for a batch of scenes, a number for each: (batch, 1, 1)."""

    def __init__(self, stream: tuple[int | str, ...], ids: Ids) -> None:
        self.stream = stream
        self.ids = ids[:, None, None]

    def between(self, name: str, low: float, high: float) -> Field:
        drawn = uniform(key(*self.stream, name), self.ids)
        return (low + (high - low) * drawn).astype(np.float32)

    def happens(self, name: str, share: float) -> Field:
        """One in that share of the scenes, zero in the others."""
        return (self.between(name, 0.0, 1.0) < share).astype(np.float32)

    def turn(self, name: str, most: int = _TURNS // 2) -> Turn:
        """Any direction, or one that is at most so far from upright."""
        return integers(key(*self.stream, name), 2 * most, self.ids) - most

    def noise(self, channels: int, size: int) -> npt.NDArray[np.uint8]:
        """A byte for every value of a picture: (channels, batch, height, width)."""
        values = channels * size * size
        words = np.arange(-(-values // 8))
        drawn = bits(key(*self.stream, "noise"), self.ids[:, 0], words)
        values_of_each = drawn.astype("<u8", copy=False).view(np.uint8)[:, :values]
        return values_of_each.reshape(-1, channels, size, size).swapaxes(0, 1)


class PixelGrid(NamedTuple):
    """Where each pixel lies as a thing in the scene sees it: itself upright around the origin."""

    x: Field
    y: Field
    pixel: Field  # the width of one, in the thing's own unit

    def around(self, x: Field, y: Field, turn: Turn, unit: Field) -> "PixelGrid":
        """The grid of a thing that stands at (x, y), turned, and is `unit` in size."""
        cosine, sine = _COSINES[turn] / unit, _COSINES[turn - _TURNS // 4] / unit
        # Columns and rows are turned apart, so that only one addition sees every pixel.
        right, up = self.x - x, self.y - y
        return PixelGrid(right * cosine + up * sine, up * cosine - right * sine, self.pixel / unit)

    def cover(self, distance: Field) -> Field:
        """The share of each pixel that lies inside: an edge is one pixel wide."""
        return np.clip(0.5 - distance * (1.0 / self.pixel), 0.0, 1.0)


def picture(size: int) -> PixelGrid:
    """The grid of the picture itself: −1 … 1 from edge to edge, to the right and upwards."""
    middles = ((np.arange(size) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    return PixelGrid(middles[None, None, :], -middles[None, :, None], _ONE * (2.0 / size))


def tint(rng: SceneRng, name: str, strongest: float) -> Field:
    """A push towards some hue that leaves the lightness alone: (3, batch, 1, 1)."""
    hue = rng.turn(f"{name} hue")
    thirds = [_COSINES[(hue + third * (_TURNS // 3)) % _TURNS] for third in range(3)]
    return np.multiply(rng.between(f"{name} tint", 0.0, strongest), thirds)


def color(rng: SceneRng, name: str, step: float) -> Field:
    """A color whose lightness is about a given step from the background's: (3, batch, 1, 1).

    Steps go round a circle on which black follows white: half of it is the same contrast for
    every background, and yet no lightness tells a shape from a background.
    """
    place = rng.between("lightness", 0.0, 1.0) + rng.between(name, step - 0.05, step + 0.05)
    return tint(rng, name, 0.25) + (place - np.floor(place)) * 0.9 + 0.05


def background(rng: SceneRng, grid: PixelGrid) -> Field:
    """Soft stripes, over a slow change of hue across the picture: (3, batch, height, width)."""
    middle = rng.between("stripe shift", -1.0, 1.0)
    along = grid.around(middle, middle, rng.turn("stripes"), rng.between("stripe", 0.2, 0.8))
    stripes = np.abs(along.x - np.floor(along.x) - 0.5) * rng.between("stripe depth", 0.0, 0.1)
    drift = grid.around(middle, middle, rng.turn("drift"), _ONE)
    canvas: Field = drift.x * tint(rng, "drift", 0.15) + stripes
    return canvas + color(rng, "background", 0.0)


def distractor(rng: SceneRng, grid: PixelGrid) -> Field:
    """A stick anywhere, in six of ten scenes: how much of each pixel it covers."""
    x, y = rng.between("stick x", -0.9, 0.9), rng.between("stick y", -0.9, 0.9)
    stick = grid.around(x, y, rng.turn("stick turn"), rng.between("stick", 0.2, 0.6))
    return stick.cover(box(stick.x, stick.y, 1.0, 0.2)) * rng.happens("stick seen", 0.6)


def standing(rng: SceneRng, grid: PixelGrid) -> PixelGrid:
    """The grid of the shape: anywhere inside, up to an eighth of a turn from upright."""
    radius = rng.between("radius", 0.6, 0.8)
    room = 1.0 - 0.9 * radius
    x, y = rng.between("x", -1.0, 1.0) * room, rng.between("y", -1.0, 1.0) * room
    return grid.around(x, y, rng.turn("turn", _TURNS // 8), radius)


def shape(labels: Labels, grid: PixelGrid) -> Field:
    """The shape that gives the scene its label: how much of each pixel it covers."""
    cover = np.empty(grid.x.shape, np.float32)
    for label, outline in enumerate(OUTLINES.values()):
        own = np.flatnonzero(labels == label)
        thing = PixelGrid(grid.x[own], grid.y[own], grid.pixel[own])
        cover[own] = thing.cover(outline(thing.x, thing.y))
    return cover


def occluder(rng: SceneRng, grid: PixelGrid) -> Field:
    """A short bar before the shape, in four of ten scenes: how much of each pixel it covers."""
    x, y = rng.between("bar x", -0.5, 0.5), rng.between("bar y", -0.5, 0.5)
    bar = grid.around(x, y, rng.turn("bar turn"), rng.between("bar", 0.3, 0.6))
    return bar.cover(box(bar.x, bar.y, 1.0, 0.3)) * rng.happens("bar seen", 0.4)


def paint(canvas: Field, pigment: Field, cover: Field) -> None:
    """Lay a color over the canvas, as densely as `cover` says."""
    canvas += (pigment - canvas) * cover


def photograph(rng: SceneRng, canvas: Field) -> Pixels:
    """Brightness and noise, different in each picture; then bytes."""
    canvas *= rng.between("brightness", 0.8, 1.1) * 255.0
    noise = rng.noise(3, canvas.shape[-1]) - np.float32(127.5)
    canvas += noise * rng.between("grain", 0.02, 0.12)
    np.clip(canvas, 0.0, 255.0, out=canvas)
    return np.moveaxis(canvas.astype(np.uint8), 0, -1)


def draw(rng: SceneRng, labels: Labels, size: int) -> Pixels:
    """Scenes, painted from back to front, then seen by a camera."""
    whole = picture(size)
    place = standing(rng, whole)
    canvas = background(rng, whole)
    paint(canvas, color(rng, "distractor", 0.17), distractor(rng, whole))
    paint(canvas, color(rng, "shape", 0.5), shape(labels, place))
    paint(canvas, color(rng, "occluder", 0.75), occluder(rng, place))
    return photograph(rng, canvas)


class Shapes(PixelSource):
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
            drawn[some] = draw(SceneRng(self._stream, ids[some]), labels[some], size)
        return drawn

    def labels(self, ids: Ids) -> Labels:
        """The classes take turns, so that every run of ids holds equal shares of them."""
        if len(ids) and (ids.min() < 0 or ids.max() >= self._samples):
            raise DataError(
                f"shapes was opened with the samples 0 … {self._samples - 1} "
                f"but asked for {ids.min()} … {ids.max()}; raise --samples"
            )
        return ids % len(self.class_names)
