"""Ten outlines as signed distances: below zero inside, above zero outside, one slope at the edge.

In come coordinates, the shape upright within the unit circle; out comes one distance a point.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

# (batch, height, width), or what broadcasts to it; in fact 32-bit, which the stubs cannot follow.
Field = npt.NDArray[np.floating[Any]]
Outline = Callable[[Field, Field], Field]


def length(x: Field, y: Field) -> Field:
    """How far each point is from the origin."""
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


OUTLINES: dict[str, Outline] = {
    "disc": disc,
    "square": square,
    "triangle": triangle,
    "star": star,
    "cross": cross,
    "ring": ring,
    "crescent": crescent,
    "heart": heart,
    "arrow": arrow,
    "hourglass": hourglass,
}
