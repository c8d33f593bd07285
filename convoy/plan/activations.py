"""What one micro-batch holds in a stage, followed tensor by tensor as torch makes and frees them.

forward    ▁▂▃▄▅▆   what the backward pass needs stays; recomputation drops it at once
between    ▂▂▂▂▂▂   what came in, what goes out, and what was kept
backward   ▆▇▆▅▃▂   with recomputation each segment fills up again, right before its turn
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from convoy.plan.layers import LayerCost, LayerPlan, Route, made_by, put, taken
from convoy.plan.operations import Multiply, PadChannels, Saves, Shape


@dataclass(frozen=True)
class Passage:
    """Elements of one sample that one micro-batch holds in a stage."""

    came_in: int
    goes_out: int
    between: int  # from its forward to its backward: came in, goes out, kept
    forward: int  # the most during its forward
    backward: int  # the most during its backward, with gradients and what is computed again
    answers: int = 0  # gradients that a split backward keeps for the weights


def passage(
    layers: Sequence[LayerPlan],
    costs: Sequence[LayerCost],
    starts: Sequence[int] | None,
    is_first: bool,
) -> Passage:
    """Follow a micro-batch through a stage, forward and back.

    `starts` are the first layers of the segments that are computed again; None keeps everything.
    """
    return _Follower(layers, costs, starts).passage(is_first)


@dataclass(frozen=True, eq=False)
class _Tensor:
    """Some memory; two names for the same memory are one object."""

    elements: int


_Bundle = tuple[_Tensor, ...]


class _Ledger:
    """Who is alive: a tensor counts once, however many hold it."""

    def __init__(self) -> None:
        self.holders: Counter[_Tensor] = Counter()
        self.now = 0
        self.most = 0

    def hold(self, tensors: Iterable[_Tensor]) -> None:
        for one in tensors:
            self.now += 0 if self.holders[one] else one.elements
            self.holders[one] += 1
        self.most = max(self.most, self.now)

    def drop(self, tensors: Iterable[_Tensor]) -> None:
        for one in tensors:
            self.holders[one] -= 1
            self.now -= 0 if self.holders[one] else one.elements


class _Follower:
    """One micro-batch on its way through the layers of a stage."""

    def __init__(
        self, layers: Sequence[LayerPlan], costs: Sequence[LayerCost], starts: Sequence[int] | None
    ) -> None:
        self.layers = layers
        self.costs = costs
        self.recomputes = starts is not None
        borders = pairwise([*(starts or [0]), len(layers)])
        self.segments = [range(*border) for border in borders]
        self.ledger = _Ledger()
        self.saved: dict[int, _Bundle] = {}  # by layer, for its backward
        self.received: _Bundle = ()  # gradients

    def passage(self, is_first: bool) -> Passage:
        came_in = _new(self.costs[0].bundle_in)
        self.ledger.hold(came_in)
        inputs, goes_out = self._go_forward(came_in)
        between, forward = self.ledger.now, self.ledger.most
        self.ledger.most = between
        if not is_first:
            # What only passes by gets its gradient at once, as a copy of what was received.
            self.ledger.hold(_Tensor(one.elements) for one in goes_out if one in came_in)
        self._go_back(inputs, _new(self.costs[-1].bundle_out), is_first)
        most = self.ledger.most
        return Passage(_sum(came_in), _sum(goes_out), between, forward, most, self._answers())

    def _answers(self) -> int:
        """What convolutions and linear layers made has a gradient each."""
        pairs = zip(self.layers, self.costs, strict=True)
        return sum(
            made_by(layer.route, cost.bundle_out).elements
            for layer, cost in pairs
            if layer.operation.is_product
        )

    def _go_forward(self, bundle: _Bundle) -> tuple[list[_Bundle], _Bundle]:
        """What comes into a segment is kept if it saves something, and what leaves the stage."""
        inputs = []
        self.ledger.hold(bundle)
        for segment in self.segments:
            made = self._forward(segment, bundle, keeps=not self.recomputes)
            is_kept = any(map(self._saves, segment))
            self.ledger.drop(() if is_kept else bundle)
            inputs.append(bundle if is_kept else ())
            bundle = made
        return inputs, bundle

    def _forward(self, segment: range, given: _Bundle, keeps: bool) -> _Bundle:
        """Run some layers. What they make at the end is held, and what they save if it is kept."""
        bundle = given
        self.ledger.hold(bundle)
        for index in segment:
            layer = self.layers[index]
            source = taken(layer.route, bundle)
            shape = made_by(layer.route, self.costs[index].bundle_out)
            # What comes into a segment is needed again: nothing writes over it.
            in_place = layer.operation.in_place and source not in given
            made = source if in_place else _Tensor(shape.elements)
            behind = put(layer.route, bundle, made)
            self.ledger.hold(behind)
            if keeps:
                aside = _Tensor(layer.operation.aside(shape))
                self.saved[index] = (*_saved(layer, bundle, made), aside)
                self.ledger.hold(self.saved[index])
            self.ledger.drop(bundle)
            bundle = behind
        return bundle

    def _go_back(self, inputs: list[_Bundle], gradients: _Bundle, is_first: bool) -> None:
        """From the last segment to the first; what came into one is free after its turn."""
        self.received = gradients
        self.ledger.hold(gradients)
        self.ledger.hold(gradients)  # whoever hands them in holds them to the end
        for segment, given in zip(self.segments[::-1], inputs[::-1], strict=True):
            for index in reversed(segment):
                if self.recomputes and index not in self.saved and self._saves(index):
                    self._compute_again(segment, given)
                has_gradient = not (is_first and index == 0)
                gradients = self._backward(index, gradients, has_gradient)
            self.ledger.drop(given)

    def _saves(self, index: int) -> bool:
        operation = self.layers[index].operation
        made = made_by(self.layers[index].route, self.costs[index].bundle_out)
        return operation.saves is not Saves.NOTHING or operation.aside(made) > 0

    def _compute_again(self, segment: range, given: _Bundle) -> None:
        """Up to the last layer that saves something, for torch stops there.

        Convolutions and linear layers save what they are given before they begin.
        """
        last = max(index for index in segment if self._saves(index))
        layer = self.layers[last]
        begins_only = layer.operation.is_product
        bundle = self._forward(range(segment[0], last + (not begins_only)), given, keeps=True)
        if begins_only:
            self.saved[last] = (taken(layer.route, bundle),)
            self.ledger.hold(self.saved[last])
        self.ledger.drop(bundle)

    def _backward(self, index: int, gradients: _Bundle, has_gradient: bool) -> _Bundle:
        """The gradients of what a layer was given, out of those of what it made."""
        route = self.layers[index].route
        given = taken(route, self.costs[index].bundle_in)
        new = _Tensor(given.elements if has_gradient else 0)  # images need none
        if isinstance(self.layers[index].operation, Multiply):
            before = (*_new(self.costs[index].bundle_in[:2]), *gradients[1:])
        else:
            before = _gradients(route, gradients, new)
        self.ledger.hold(before)
        self._work_on(self._aside(index))
        if route in (Route.FORK, Route.SPUR):
            before = self._added(before)
        self.ledger.drop(self.saved.pop(index, ()))
        self.ledger.drop(gradients)
        return before

    def _aside(self, index: int) -> _Tensor:
        """The middle of undoing a stride in two dimensions, one after the other."""
        layer, cost = self.layers[index], self.costs[index]
        given, made = taken(layer.route, cost.bundle_in), made_by(layer.route, cost.bundle_out)
        is_strided = isinstance(layer.operation, PadChannels) and made.size < given.size
        return _Tensor(given.channels * given.size * made.size if is_strided else 0)

    def _work_on(self, tensor: _Tensor) -> None:
        self.ledger.hold([tensor])
        self.ledger.drop([tensor])

    def _added(self, before: _Bundle) -> _Bundle:
        """The two roads of a fork in one: in the place of the second, unless others hold that."""
        new, side, *others = before
        total = _Tensor(new.elements) if side in self.received else side
        self.ledger.hold([total])
        self.ledger.drop([new, side])
        return (total, *others)


def _gradients(route: Route, gradients: _Bundle, new: _Tensor) -> _Bundle:
    match route:
        case Route.JOIN:  # a sum hands the same gradient to both roads
            return (gradients[0], *gradients)
        case Route.SIDE:
            return (gradients[0], new, *gradients[2:])
        case Route.FORK | Route.MAIN:
            return (new, *gradients[1:])
        case Route.SPUR:
            return (new, gradients[0], *gradients[2:])


def _new(bundle: tuple[Shape, ...]) -> _Bundle:
    return tuple(_Tensor(shape.elements) for shape in bundle)


def _sum(bundle: _Bundle) -> int:
    return sum(one.elements for one in bundle)


def _saved(layer: LayerPlan, given: _Bundle, made: _Tensor) -> _Bundle:
    """What autograd keeps of a layer: see `plan/layers.py`, whose counts are the same."""
    match layer.operation.saves:
        case Saves.NOTHING:
            return ()
        case Saves.MADE:
            return (made,)
        case Saves.BOTH:
            return given[:2]
        case Saves.GIVEN:
            return (taken(layer.route, given),)
