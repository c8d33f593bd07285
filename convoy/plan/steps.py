"""What torch makes, keeps and needs on the way through a layer, step by step, for one sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Shape:
    """One sample of one tensor."""

    channels: int
    size: int  # height and width; 1 after pooling over the whole image

    @property
    def elements(self) -> int:
        return self.channels * self.size * self.size


class Saves(Enum):
    """What stays until the backward pass."""

    NOTHING = "nothing"
    GIVEN = "what it was given"
    BOTH = "both things it was given"
    MADE = "what it made"


@dataclass(frozen=True)
class Step:
    """Most layers are one; in a chain each works on what the one before it made."""

    made: Shape
    saves: Saves
    in_place: bool = False
    is_product: bool = False
    saves_first: bool = False  # before it begins: what it saves does not wait for its result
    aside: int = 0  # elements kept for its backward pass beside what it was given or made
    work: int = 0  # elements that its backward pass needs beside the gradient it makes
    hands_on: bool = False  # backward, the gradient stays the tensor that it is


def padding(given: Shape, kernel: int, stride: int) -> Step:
    """A larger copy, so that ⌈size ÷ stride⌉ windows fit."""
    added = max((-(-given.size // stride) - 1) * stride + kernel - given.size, 0)
    return Step(Shape(given.channels, given.size + added), Saves.NOTHING)


def scaling(given: Shape) -> Step:
    """The gradient of a scale is a product as large as the image before it is summed."""
    return Step(given, Saves.GIVEN, saves_first=True, work=given.elements)


def moving(given: Shape, work: int = 0) -> Step:
    return Step(given, Saves.NOTHING, hands_on=True, work=work)


def group_norm(given: Shape, two_passes: bool, strided: bool) -> Iterator[Step]:
    """In two passes the mean goes first. Strided channels change places, and change back."""
    if two_passes:
        yield moving(given)
    if strided:
        yield Step(given, Saves.NOTHING)
    yield Step(given, Saves.GIVEN)
    if strided:
        yield Step(given, Saves.NOTHING)
