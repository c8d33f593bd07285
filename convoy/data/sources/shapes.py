"""Synthetic dataset of ten shapes, drawn from signed distances (negative inside the outline).

An outline maps coordinates, with the shape upright in the unit circle, to one distance per point.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from convoy.data.source import Ids, Labels, Normalization, Pixels, Split
from convoy.data.sources.pixel_source import PixelSource
from convoy.errors import ConfigError
from convoy.rng import bits, integers, key, uniform

# (batch, height, width) or broadcastable; float32 in practice, which the stubs cannot express.
FloatGrid = npt.NDArray[np.floating[Any]]
Outline = Callable[[FloatGrid, FloatGrid], FloatGrid]


def distance_to_origin(x: FloatGrid, y: FloatGrid) -> FloatGrid:
    distance: FloatGrid = np.sqrt(x * x + y * y)
    return distance


def rectangle(
    x: FloatGrid, y: FloatGrid, half_width: FloatGrid | float, half_height: FloatGrid | float
) -> FloatGrid:
    """An upright rectangle around the origin."""
    edge: FloatGrid = np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)
    return edge


def star(x: FloatGrid, y: FloatGrid) -> FloatGrid:
    """Five points, folded along its axes of symmetry until one edge is left."""
    x = np.abs(x)
    for normal_x in (0.809017, -0.809017):  # axes at ±36° from upright: (cos 36°, −sin 36°)
        beyond = 2.0 * np.maximum(normal_x * x - 0.587785 * y, 0.0)
        x = x - normal_x * beyond
        y = y + 0.587785 * beyond
    return np.abs(x) * 0.833 + (y - 1.0) * 0.553


def heart(x: FloatGrid, y: FloatGrid) -> FloatGrid:
    """Two discs and a tangent kite from their cleft (0, 0.6) to the tip (0, −0.787)."""
    x = np.abs(x)
    lobes = distance_to_origin(x - 0.44, y - 0.36) - 0.5
    kite = np.maximum((x - y - 0.787) * 0.707107, x * 0.601 + (y - 0.6) * 0.7993)
    union: FloatGrid = np.minimum(kite, lobes)
    return union


def arrow(x: FloatGrid, y: FloatGrid) -> FloatGrid:
    """A triangle (tip 0.95, base 0.0, half width 0.74) on a shaft."""
    head = np.maximum((np.abs(x) * 0.95 + (y - 0.95) * 0.74) * 0.83045, -y)
    union: FloatGrid = np.minimum(head, rectangle(x, y + 0.45, 0.24, 0.48))
    return union


def hourglass(x: FloatGrid, y: FloatGrid) -> FloatGrid:
    """Two triangles that meet at their tips, with a visible waist."""
    y = np.abs(y)
    edge: FloatGrid = np.maximum(y - 0.82, (np.abs(x) - 0.78 * y - 0.07) * 0.788)
    return edge


OUTLINES: dict[str, Outline] = {
    "disc": lambda x, y: distance_to_origin(x, y) - 0.86,
    "square": lambda x, y: rectangle(x, y, 0.74, 0.74),
    # Equilateral; (√3/2, 1/2) is the normal of the two upper sides.
    "triangle": lambda x, y: np.maximum(np.abs(x) * 0.866025 + y * 0.5, -y) - 0.52,
    "star": star,
    "cross": lambda x, y: np.minimum(rectangle(x, y, 0.94, 0.27), rectangle(x, y, 0.27, 0.94)),
    "ring": lambda x, y: np.abs(distance_to_origin(x, y) - 0.7) - 0.2,
    # A disc minus a smaller disc at its side.
    "crescent": lambda x, y: np.maximum(
        distance_to_origin(x + 0.12, y) - 0.88, 0.72 - distance_to_origin(x - 0.34, y)
    ),
    "heart": heart,
    "arrow": arrow,
    "hourglass": hourglass,
}

MIN_IMAGE_SIZE = 8  # below it, not even the ring has a hole

_CHUNK = 2**16  # pixels rendered at a time, so that the arrays fit in a core's cache
_DIRECTIONS = 1536  # 3 · 2^9, so that a third and an eighth of a rotation are integers
# Rounded to six digits, to be independent of the math library.
_COSINES = np.cos(np.arange(_DIRECTIONS) * (2.0 * np.pi / _DIRECTIONS)).round(6).astype(np.float32)
_UNIT = np.ones((1, 1, 1), np.float32)

Rotation = npt.NDArray[np.int64]  # (batch, 1, 1): indices into the table of cosines


class SceneRng:
    """Named random numbers, one per scene of a batch: (batch, 1, 1)."""

    def __init__(self, stream: tuple[int | str, ...], ids: Ids) -> None:
        self.stream = stream
        self.ids = ids[:, None, None]

    def uniform(self, name: str, low: float, high: float) -> FloatGrid:
        rand = uniform(key(*self.stream, name), self.ids)
        return (low + (high - low) * rand).astype(np.float32)

    def bernoulli(self, name: str, probability: float) -> FloatGrid:
        """Return 1 with this probability, else 0."""
        return (self.uniform(name, 0.0, 1.0) < probability).astype(np.float32)

    def rotation(self, name: str, limit: int = _DIRECTIONS // 2) -> Rotation:
        """Return a random rotation of at most `limit` from upright; by default any."""
        return integers(key(*self.stream, name), 2 * limit, self.ids) - limit

    def noise(self, channels: int, size: int) -> npt.NDArray[np.uint8]:
        """Return random bytes: (channels, batch, height, width)."""
        values = channels * size * size
        words = np.arange(-(-values // 8))
        rand = bits(key(*self.stream, "noise"), self.ids[:, 0], words)
        noise_bytes = rand.astype("<u8", copy=False).view(np.uint8)[:, :values]
        return noise_bytes.reshape(-1, channels, size, size).swapaxes(0, 1)


class PixelGrid(NamedTuple):
    """Pixel coordinates relative to an object, which is upright at the origin."""

    x: FloatGrid
    y: FloatGrid
    pixel: FloatGrid  # pixel width, in units of the object

    def transform(
        self, x: FloatGrid, y: FloatGrid, rotation: Rotation, unit: FloatGrid
    ) -> "PixelGrid":
        """Return the grid of an object at (x, y) with this rotation and size."""
        cosine, sine = _COSINES[rotation] / unit, _COSINES[rotation - _DIRECTIONS // 4] / unit
        # Rotate columns and rows separately, so that only one addition is per pixel.
        right, up = self.x - x, self.y - y
        return PixelGrid(right * cosine + up * sine, up * cosine - right * sine, self.pixel / unit)

    def coverage(self, distance: FloatGrid) -> FloatGrid:
        """Return the fraction of each pixel inside; edges are antialiased over one pixel."""
        return np.clip(0.5 - distance * (1.0 / self.pixel), 0.0, 1.0)


def pixel_grid(size: int) -> PixelGrid:
    """Return the grid of the image: x to the right and y upwards, −1 and 1 at the edges."""
    centers = ((np.arange(size) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    return PixelGrid(centers[None, None, :], -centers[None, :, None], _UNIT * (2.0 / size))


def tint(rng: SceneRng, name: str, max_strength: float) -> FloatGrid:
    """Return a random hue offset that keeps the lightness: (3, batch, 1, 1)."""
    hue = rng.rotation(f"{name} hue")
    thirds = [_COSINES[(hue + third * (_DIRECTIONS // 3)) % _DIRECTIONS] for third in range(3)]
    return np.multiply(rng.uniform(f"{name} tint", 0.0, max_strength), thirds)


def color(rng: SceneRng, name: str, step: float) -> FloatGrid:
    """Return a color whose lightness is about `step` from the background's: (3, batch, 1, 1).

    Lightness wraps around from white to black: the contrast is the same for every background, and
    lightness alone does not distinguish a shape from a background.
    """
    lightness = rng.uniform("lightness", 0.0, 1.0) + rng.uniform(name, step - 0.05, step + 0.05)
    return tint(rng, name, 0.25) + (lightness - np.floor(lightness)) * 0.9 + 0.05


def background(rng: SceneRng, grid: PixelGrid) -> FloatGrid:
    """Render soft stripes over a gradual change of hue: (3, batch, height, width)."""
    offset = rng.uniform("stripe shift", -1.0, 1.0)
    along = grid.transform(offset, offset, rng.rotation("stripes"), rng.uniform("stripe", 0.2, 0.8))
    stripes = np.abs(along.x - np.floor(along.x) - 0.5) * rng.uniform("stripe depth", 0.0, 0.1)
    drift = grid.transform(offset, offset, rng.rotation("drift"), _UNIT)
    canvas: FloatGrid = drift.x * tint(rng, "drift", 0.15) + stripes
    return canvas + color(rng, "background", 0.0)


def distractor_coverage(rng: SceneRng, grid: PixelGrid) -> FloatGrid:
    """Coverage of a stick at a random position, in 60% of the scenes."""
    x, y = rng.uniform("stick x", -0.9, 0.9), rng.uniform("stick y", -0.9, 0.9)
    stick = grid.transform(x, y, rng.rotation("stick turn"), rng.uniform("stick", 0.2, 0.6))
    return stick.coverage(rectangle(stick.x, stick.y, 1.0, 0.2)) * rng.bernoulli("stick seen", 0.6)


def place_shape(rng: SceneRng, grid: PixelGrid) -> PixelGrid:
    """Return the grid of the shape: anywhere inside, rotated by up to 45°."""
    radius = rng.uniform("radius", 0.6, 0.8)
    max_offset = 1.0 - 0.9 * radius
    x, y = rng.uniform("x", -1.0, 1.0) * max_offset, rng.uniform("y", -1.0, 1.0) * max_offset
    return grid.transform(x, y, rng.rotation("turn", _DIRECTIONS // 8), radius)


def shape_coverage(labels: Labels, grid: PixelGrid) -> FloatGrid:
    coverage = np.empty(grid.x.shape, np.float32)
    for label, outline in enumerate(OUTLINES.values()):
        scenes = np.flatnonzero(labels == label)
        shapes = PixelGrid(grid.x[scenes], grid.y[scenes], grid.pixel[scenes])
        coverage[scenes] = shapes.coverage(outline(shapes.x, shapes.y))
    return coverage


def occluder_coverage(rng: SceneRng, grid: PixelGrid) -> FloatGrid:
    """Coverage of a short bar in front of the shape, in 40% of the scenes."""
    x, y = rng.uniform("bar x", -0.5, 0.5), rng.uniform("bar y", -0.5, 0.5)
    bar = grid.transform(x, y, rng.rotation("bar turn"), rng.uniform("bar", 0.3, 0.6))
    return bar.coverage(rectangle(bar.x, bar.y, 1.0, 0.3)) * rng.bernoulli("bar seen", 0.4)


def paint(canvas: FloatGrid, color: FloatGrid, coverage: FloatGrid) -> None:
    """Blend a color onto the canvas in place."""
    canvas += (color - canvas) * coverage


def to_pixels(rng: SceneRng, canvas: FloatGrid) -> Pixels:
    """Apply random brightness and noise, and convert to bytes."""
    canvas *= rng.uniform("brightness", 0.8, 1.1) * 255.0
    noise = rng.noise(3, canvas.shape[-1]) - np.float32(127.5)
    canvas += noise * rng.uniform("grain", 0.02, 0.12)
    np.clip(canvas, 0.0, 255.0, out=canvas)
    return np.moveaxis(canvas.astype(np.uint8), 0, -1)


def render_scenes(rng: SceneRng, labels: Labels, size: int) -> Pixels:
    """Render scenes from back to front."""
    grid = pixel_grid(size)
    shape_grid = place_shape(rng, grid)
    canvas = background(rng, grid)
    paint(canvas, color(rng, "distractor", 0.17), distractor_coverage(rng, grid))
    paint(canvas, color(rng, "shape", 0.5), shape_coverage(labels, shape_grid))
    paint(canvas, color(rng, "occluder", 0.75), occluder_coverage(rng, shape_grid))
    return to_pixels(rng, canvas)


class ShapesSource(PixelSource):
    """One split with any number of samples; a larger split starts with those of a smaller one."""

    class_names = tuple(OUTLINES)
    normalization = Normalization((0.477, 0.477, 0.477), (0.263, 0.263, 0.263))  # measured

    def __init__(
        self, samples: int, image_size: int = 32, seed: int = 0, split: Split = "train"
    ) -> None:
        if image_size < MIN_IMAGE_SIZE:
            raise ConfigError(
                f"shapes needs images of at least {MIN_IMAGE_SIZE} × {MIN_IMAGE_SIZE} pixels, "
                f"got {image_size}; raise --image-size"
            )
        self.image_size = image_size
        self._samples = samples
        self._stream = (seed, "shapes", split)

    def __len__(self) -> int:
        return self._samples

    def pixels(self, ids: Ids) -> Pixels:
        size = self.image_size
        labels = self.labels(ids)
        pixels = np.empty((len(ids), size, size, 3), np.uint8)
        chunk_size = max(1, _CHUNK // size**2)
        for start in range(0, len(ids), chunk_size):
            chunk = slice(start, start + chunk_size)
            rng = SceneRng(self._stream, ids[chunk])
            pixels[chunk] = render_scenes(rng, labels[chunk], size)
        return pixels

    def labels(self, ids: Ids) -> Labels:
        """Return labels that cycle through the classes, so any range of ids is balanced."""
        return ids % len(self.class_names)
