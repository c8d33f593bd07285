"""What a layer is and what it costs, before any tensor exists.

Between two layers travels a small bundle of tensors: one on a plain road, two inside a residual
block, where a side road goes around the convolutions, three where a gate branches off inside it.
So a stage can begin anywhere.

    MAIN  (x, …)    → (f(x), …)           FORK  (x, …)    → (f(x), x, …)   a side road begins
    SIDE  (x, s, …) → (x, f(s), …)        SPUR  (x, …)    → (x, f(x), …)   … with something made
    JOIN  (x, s, …) → (f(x, s), …)                                         a side road ends
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from convoy.models.operations import AutogradStep, Operation, Saves, Shape

T = TypeVar("T")


class Route(Enum):
    """Which tensors of the bundle a layer takes, and where it puts its result."""

    MAIN = "main"
    FORK = "fork"
    SPUR = "spur"
    SIDE = "side"
    JOIN = "join"


@dataclass(frozen=True)
class LayerPlan:
    """One named layer of a network."""

    name: str
    operation: Operation
    route: Route = Route.MAIN


@dataclass(frozen=True)
class LayerCost:
    """A layer for one sample of a given size: what travels in and out, work and memory."""

    name: str
    bundle_in: tuple[Shape, ...]
    bundle_out: tuple[Shape, ...]
    parameters: int
    macs: int
    kept: int  # elements of its result that are kept for the backward pass
    in_place: bool  # writes its result over what it was given


@dataclass(frozen=True, eq=False)
class _Result:
    """A tensor, by the layer that made it."""

    layer: int
    elements: int


def layer_costs(layers: Sequence[LayerPlan], image: Shape) -> tuple[LayerCost, ...]:
    """Follow one image through the layers."""
    costs: list[LayerCost] = []
    bundle: tuple[Shape, ...] = (image,)
    kept = _kept(layers, image)
    for index, layer in enumerate(layers):
        source = taken(layer.route, bundle)
        after = put(layer.route, bundle, layer.operation.shape(source))
        costs.append(
            LayerCost(
                layer.name,
                bundle,
                after,
                layer.operation.parameters,
                layer.operation.macs(source),
                kept[index],
                layer.operation.in_place,
            )
        )
        bundle = after
    return tuple(costs)


def _kept(layers: Iterable[LayerPlan], image: Shape) -> Counter[int]:
    """Elements of each layer that stay until the backward pass; the loss keeps the last result."""
    asides: Counter[int] = Counter()
    results: set[_Result] = set()
    shapes: tuple[Shape, ...] = (image,)
    bundle: tuple[_Result, ...] = (_Result(-1, image.elements),)
    for index, layer in enumerate(layers):
        shape = taken(layer.route, shapes)
        for route, step in routed(layer.route, layer.operation.steps(shape)):
            source = taken(route, bundle)
            result = source if step.in_place else _Result(index, step.result.elements)
            results.update(saved(step.saves, route, bundle, result))
            asides[index] += step.aside
            bundle = put(route, bundle, result)
            shapes = put(route, shapes, step.result)
    for one in {*results, bundle[0]}:
        asides[one.layer] += one.elements
    return asides


def routed(route: Route, steps: Sequence[AutogradStep]) -> Iterator[tuple[Route, AutogradStep]]:
    """The steps of a layer with their roads: what its first one has put there, the others take."""
    onward = Route.SIDE if route in (Route.SPUR, Route.SIDE) else Route.MAIN
    yield from zip((route, *[onward] * (len(steps) - 1)), steps, strict=True)


def saved(saves: Saves, route: Route, bundle: tuple[T, ...], result: T) -> tuple[T, ...]:
    """What stays of a step that has made this out of the bundle."""
    match saves:
        case Saves.NOTHING:
            return ()
        case Saves.RESULT:
            return (result,)
        case Saves.BOTH:
            return bundle[:2]
        case Saves.INPUT:
            return (taken(route, bundle),)


def taken(route: Route, bundle: tuple[T, ...]) -> T:
    """The tensor that a layer works on; the side road's half of a sum is not meant."""
    return bundle[1] if route is Route.SIDE else bundle[0]


def put(route: Route, bundle: tuple[T, ...], result: T) -> tuple[T, ...]:
    """The bundle behind a layer that has made this out of it."""
    match route:
        case Route.MAIN:
            return (result, *bundle[1:])
        case Route.FORK:
            return (result, *bundle)
        case Route.SPUR:
            return (bundle[0], result, *bundle[1:])
        case Route.SIDE:
            return (bundle[0], result, *bundle[2:])
        case Route.JOIN:
            return (result, *bundle[2:])
