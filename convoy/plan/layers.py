"""What a layer is and what it costs, before any tensor exists.

Between two layers travels a small bundle of tensors: one on a plain road, two inside a residual
block, where a side road goes around the convolutions, three where a gate branches off inside it.
So a stage can begin anywhere.

    MAIN  (x, …)    → (f(x), …)           FORK  (x, …)    → (f(x), x, …)   a side road begins
    SIDE  (x, s, …) → (x, f(s), …)        SPUR  (x, …)    → (x, f(x), …)   … with something made
    JOIN  (x, s, …) → (f(x, s), …)                                         a side road ends
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from convoy.plan.operations import Operation, Saves, Shape

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


def layer_costs(layers: Sequence[LayerPlan], image: Shape) -> tuple[LayerCost, ...]:
    """Follow one image through the layers."""
    costs: list[LayerCost] = []
    bundle: tuple[Shape, ...] = (image,)
    kept = _kept_results(layers)
    for index, layer in enumerate(layers):
        given = taken(layer.route, bundle)
        made = layer.operation.shape(given)
        after = put(layer.route, bundle, made)
        aside = layer.operation.aside(made)
        costs.append(
            LayerCost(
                layer.name,
                bundle,
                after,
                layer.operation.parameters,
                layer.operation.macs(given),
                aside + (made.elements if index in kept else 0),
                layer.operation.in_place,
            )
        )
        bundle = after
    return tuple(costs)


def _kept_results(layers: Iterable[LayerPlan]) -> set[int]:
    """The layers whose results stay until the backward pass; the loss keeps the last one."""
    kept: set[int] = set()
    makers: tuple[int, ...] = (-1,)  # of each tensor of the bundle
    for index, layer in enumerate(layers):
        maker = taken(layer.route, makers)
        maker_now = maker if layer.operation.in_place else index
        match layer.operation.saves:
            case Saves.GIVEN:
                kept.add(maker)
            case Saves.BOTH:
                kept.update(makers[:2])
            case Saves.MADE:
                kept.add(maker_now)
        makers = put(layer.route, makers, maker_now)
    return kept | {makers[0]}


def taken(route: Route, bundle: tuple[T, ...]) -> T:
    """The tensor that a layer works on; the side road's half of a sum is not meant."""
    return bundle[1] if route is Route.SIDE else bundle[0]


def made_by(route: Route, bundle: tuple[T, ...]) -> T:
    """The tensor that a layer has put into this bundle."""
    return bundle[1] if route in (Route.SIDE, Route.SPUR) else bundle[0]


def put(route: Route, bundle: tuple[T, ...], made: T) -> tuple[T, ...]:
    """The bundle behind a layer that has made this out of it."""
    match route:
        case Route.MAIN:
            return (made, *bundle[1:])
        case Route.FORK:
            return (made, *bundle)
        case Route.SPUR:
            return (bundle[0], made, *bundle[1:])
        case Route.SIDE:
            return (bundle[0], made, *bundle[2:])
        case Route.JOIN:
            return (made, *bundle[2:])
