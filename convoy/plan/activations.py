"""What one micro-batch holds in a stage, followed tensor by tensor as torch makes and frees them.

forward    ▁▂▃▄▅▆   what the backward pass needs stays; recomputation drops it at once
between    ▂▂▂▂▂▂   what came in, what goes out, and what was kept
backward   ▆▇▆▅▃▂   with recomputation each segment fills up again, right before its turn
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from convoy.models.layers import LayerCost, LayerPlan, Route, put, routed, saved, taken
from convoy.models.operations import AutogradStep, Saves, Shape


@dataclass(frozen=True)
class ActivationFootprint:
    """Elements of one sample that one micro-batch holds in a stage."""

    came_in: int
    goes_out: int
    between: int  # from its forward to its backward: came in, goes out, kept
    forward: int  # the most during its forward
    backward: int  # the most during its backward, with gradients and what is computed again
    answers: int = 0  # gradients that a split backward keeps for the weights


def activation_footprint(
    layers: Sequence[LayerPlan],
    costs: Sequence[LayerCost],
    starts: Sequence[int] | None,
    is_first: bool,
) -> ActivationFootprint:
    """Follow a micro-batch through a stage, forward and back.

    `starts` are the first layers of the segments that are computed again; None keeps everything.
    """
    return _Follower(layers, costs, starts).footprint(is_first)


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


@dataclass(frozen=True)
class _Turn:
    """A step at its place, and the bundle that comes to it."""

    route: Route
    step: AutogradStep
    bundle: tuple[Shape, ...]
    is_last: bool  # of its layer

    @property
    def saves(self) -> bool:
        return self.step.saves is not Saves.NOTHING or self.step.aside > 0


def _turns(layers: Sequence[LayerPlan], came_in: tuple[Shape, ...]) -> list[list[_Turn]]:
    """Those of each layer."""
    result: list[list[_Turn]] = []
    bundle = came_in
    for layer in layers:
        turns = []
        steps = layer.operation.steps(taken(layer.route, bundle))
        for number, (route, step) in enumerate(routed(layer.route, steps), start=1):
            turns.append(_Turn(route, step, bundle, is_last=number == len(steps)))
            bundle = put(route, bundle, step.result)
        result.append(turns)
    return result


class _Follower:
    """One micro-batch on its way through the layers of a stage."""

    def __init__(
        self, layers: Sequence[LayerPlan], costs: Sequence[LayerCost], starts: Sequence[int] | None
    ) -> None:
        of_layers = _turns(layers, costs[0].bundle_in)
        ends = [0, *accumulate(map(len, of_layers))]
        self.turns = [turn for turns in of_layers for turn in turns]
        self.came_in, self.goes_out = costs[0].bundle_in, costs[-1].bundle_out
        self.recomputes = starts is not None
        borders = pairwise(ends[layer] for layer in [*(starts or [0]), len(layers)])
        self.segments = [range(*border) for border in borders]
        self.ledger = _Ledger()
        self.saved: dict[int, _Bundle] = {}  # by turn, for its backward
        self.received: _Bundle = ()  # gradients

    def footprint(self, is_first: bool) -> ActivationFootprint:
        came_in = _new(self.came_in)
        self.ledger.hold(came_in)
        inputs, goes_out = self._go_forward(came_in)
        between, forward = self.ledger.now, self.ledger.most
        self.ledger.most = between
        if not is_first:
            # What only passes by gets its gradient at once, as a copy of what was received.
            self.ledger.hold(_Tensor(one.elements) for one in goes_out if one in came_in)
        self._go_back(inputs, _new(self.goes_out), is_first)
        most = self.ledger.most
        return ActivationFootprint(
            _sum(came_in), _sum(goes_out), between, forward, most, self._answers()
        )

    def _answers(self) -> int:
        """What convolutions and linear layers made has a gradient each."""
        return sum(one.step.result.elements for one in self.turns if one.step.is_product)

    def _go_forward(self, bundle: _Bundle) -> tuple[list[_Bundle], _Bundle]:
        """What comes into a segment is kept if it saves something, and what leaves the stage."""
        inputs = []
        self.ledger.hold(bundle)
        for segment in self.segments:
            result = self._forward(segment, bundle, keeps=not self.recomputes)
            is_kept = any(self.turns[index].saves for index in segment)
            self.ledger.drop(() if is_kept else bundle)
            inputs.append(bundle if is_kept else ())
            bundle = result
        return inputs, bundle

    def _forward(self, segment: range, entering: _Bundle, keeps: bool) -> _Bundle:
        """Run some steps. What they make at the end is held, and what they save if it is kept."""
        bundle = came = entering
        self.ledger.hold([*bundle, *came])
        for index in segment:
            route, step = self.turns[index].route, self.turns[index].step
            source = taken(route, bundle)
            # What comes into a segment is needed again: nothing writes over it. A view never does.
            in_place = step.in_place and (source not in entering or step.saves is Saves.NOTHING)
            result = source if in_place else _Tensor(step.result.elements)
            behind = put(route, bundle, result)
            self.ledger.hold(behind)
            if keeps:
                self._save(index, bundle, result)
            self.ledger.drop(bundle)
            bundle = behind
            if self.turns[index].is_last:  # who calls a layer holds what came to it until then
                self.ledger.hold(bundle)
                self.ledger.drop(came)
                came = bundle
        self.ledger.drop(came)
        return bundle

    def _save(self, index: int, bundle: _Bundle, result: _Tensor) -> None:
        """What autograd keeps: see `models/layers.py`, whose counts are the same."""
        route, step = self.turns[index].route, self.turns[index].step
        self.saved[index] = (*saved(step.saves, route, bundle, result), _Tensor(step.aside))
        self.ledger.hold(self.saved[index])

    def _go_back(self, inputs: list[_Bundle], gradients: _Bundle, is_first: bool) -> None:
        """From the last segment to the first; what came into one is free after its turn."""
        self.received = gradients
        self.ledger.hold(gradients)
        self.ledger.hold(gradients)  # whoever hands them in holds them to the end
        weighty = [index for index, one in enumerate(self.turns) if one.step.is_product]
        first = weighty[0] + 1 if is_first and weighty else 0  # images need no gradient
        for segment, entering in zip(self.segments[::-1], inputs[::-1], strict=True):
            for index in reversed(segment):
                if self.recomputes and index not in self.saved and self.turns[index].saves:
                    self._compute_again(segment, entering)
                gradients = self._backward(index, gradients, has_gradient=index >= first)
            self.ledger.drop(entering)

    def _compute_again(self, segment: range, entering: _Bundle) -> None:
        """Up to the last step that saves something, for torch stops there."""
        last = max(index for index in segment if self.turns[index].saves)
        begins_only = self.turns[last].step.saves_first
        bundle = self._forward(range(segment[0], last + (not begins_only)), entering, keeps=True)
        if begins_only:
            self._save(last, bundle, _Tensor(0))
        self.ledger.drop(bundle)

    def _backward(self, index: int, gradients: _Bundle, has_gradient: bool) -> _Bundle:
        """The gradients of what a step was given, out of those of what it made."""
        turn = self.turns[index]
        source = taken(turn.route, turn.bundle)
        new = _Tensor(source.elements if has_gradient else 0)
        if turn.step.hands_on:
            before = gradients
        elif turn.step.saves is Saves.BOTH:
            before = (*_new(turn.bundle[:2]), *gradients[1:])
        else:
            before = _gradients(turn.route, gradients, new)
        self.ledger.hold(before)
        self._work_on(_Tensor(turn.step.work))
        if turn.route in (Route.FORK, Route.SPUR):
            before = self._added(before)
        self.ledger.drop(self.saved.pop(index, ()))
        self.ledger.drop(gradients)
        return before

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
