"""What one micro-batch holds in a stage, followed tensor by tensor as torch makes and frees them.

forward    ▁▂▃▄▅▆   what the backward pass needs stays; recomputation drops it at once
between    ▂▂▂▂▂▂   what came in, what goes out, and what was kept
backward   ▆▇▆▅▃▂   with recomputation each segment fills up again, right before its turn
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, pairwise

from convoy.models.layers import (
    ActivationSpec,
    AddSpec,
    ConcatSpec,
    ConvSpec,
    DropoutSpec,
    DropPathSpec,
    FlattenSpec,
    GlobalPoolSpec,
    LayerCost,
    LayerPlan,
    LinearSpec,
    MaxPoolSpec,
    MultiplySpec,
    NormSpec,
    Operation,
    PadChannelsSpec,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
    Route,
    Shape,
    SqueezeSpec,
    put,
    taken,
)

WHOLE, HALF = 4, 2  # bytes of a number
INDEX = 2  # a position is a 64-bit number: the room of two elements


class Saves(Enum):
    """What stays until the backward pass."""

    NOTHING = "nothing"
    INPUT = "what it was given"
    BOTH = "both things it was given"
    RESULT = "what it made"


@dataclass(frozen=True)
class AutogradStep:
    """Most layers are one; in a chain each works on what the one before it made."""

    result: Shape
    saves: Saves = Saves.INPUT
    in_place: bool = False  # writes its result over what it was given
    is_product: bool = False  # of weights and what it was given
    saves_first: bool = False  # before it begins: what it saves does not wait for its result
    aside: int = 0  # elements kept for its backward pass beside what it was given or made
    work: int = 0  # elements that its backward pass needs beside the gradient it makes
    hands_on: bool = False  # backward, the gradient stays the tensor that it is

    @property
    def saves_anything(self) -> bool:
        return self.saves is not Saves.NOTHING or self.aside > 0


def autograd_steps(operation: Operation, source: Shape) -> list[AutogradStep]:
    """What an operation is to torch; the last step makes what the operation makes."""
    match operation:
        case ConvSpec(kernel=kernel, stride=stride, padding="same") if kernel > 1 and stride > 1:
            return [_padding(source, kernel, stride), _single_step(operation, source)]
        case MaxPoolSpec(padding="same"):
            return [_padding(source, 3, 2), _single_step(operation, source)]
        case NormSpec(kind="group"):
            # In two passes the mean goes first. Strided channels change places, and change back.
            means = [_moving(source)] * operation.two_passes
            change = [AutogradStep(source, Saves.NOTHING)] * operation.strided
            return [*means, *change, AutogradStep(source), *change]
        case ProxyActivationSpec(recompute=False):
            return _proxy_chain(operation.kind, operation.scaled, source)
        case ProxySqueezeExciteSpec(proxy) if not proxy.recompute:
            # All but the convolutions of one pixel; the gate scales as the deviation does.
            return _proxy_chain(proxy.kind, True, source)
        case _:
            return [_single_step(operation, source)]


def _single_step(operation: Operation, source: Shape) -> AutogradStep:
    result = operation.shape(source)
    match operation:
        case ConvSpec() | LinearSpec():
            return AutogradStep(result, is_product=True, saves_first=True)
        case ActivationSpec(kind="relu"):
            return AutogradStep(result, Saves.RESULT, in_place=True)
        case ActivationSpec(kind="sigmoid"):
            return AutogradStep(result, Saves.RESULT)
        case ActivationSpec():
            return AutogradStep(result, saves_first=True)
        case AddSpec() | ConcatSpec() | SqueezeSpec() | GlobalPoolSpec():
            return AutogradStep(result, Saves.NOTHING)
        case FlattenSpec():
            return AutogradStep(result, Saves.NOTHING, in_place=True)
        case MultiplySpec():  # a product that is about to be summed
            return AutogradStep(result, Saves.BOTH, saves_first=True, work=source.elements)
        case MaxPoolSpec():
            return AutogradStep(result, aside=INDEX * result.elements)
        case PadChannelsSpec(stride):
            # Between the two dimensions, whose strides are undone one after the other.
            between = source.channels * source.size * result.size if stride > 1 else 0
            return AutogradStep(result, Saves.NOTHING, work=between)
        case DropoutSpec(rate):
            aside = result.elements if rate else 0
            return AutogradStep(result, Saves.NOTHING, saves_first=True, aside=aside)
        case DropPathSpec(rate):
            return AutogradStep(result, Saves.NOTHING, saves_first=True, aside=1 if rate else 0)
        case ProxyActivationSpec(scaled=False):
            return AutogradStep(result, work=source.elements)  # what is computed again
        case ProxyActivationSpec() | ProxySqueezeExciteSpec():
            return AutogradStep(result, work=3 * source.elements)  # and a product to be summed
        case _:
            return AutogradStep(result)


def _padding(source: Shape, kernel: int, stride: int) -> AutogradStep:
    """A larger copy, so that ⌈size ÷ stride⌉ windows fit."""
    added = max((-(-source.size // stride) - 1) * stride + kernel - source.size, 0)
    return AutogradStep(Shape(source.channels, source.size + added), Saves.NOTHING)


def _moving(source: Shape, work: int = 0) -> AutogradStep:
    return AutogradStep(source, Saves.NOTHING, hands_on=True, work=work)


def _proxy_chain(kind: str, scaled: bool, source: Shape) -> list[AutogradStep]:
    """γ·x, + β, the activation, − μ, ÷ σ."""
    # The gradient of a scale is a product as large as the image before it is summed.
    scaling = AutogradStep(source, saves_first=True, work=source.elements)
    saves = Saves.RESULT if kind == "relu" else Saves.INPUT
    activation = AutogradStep(source, saves, saves_first=saves is Saves.INPUT)
    moving = _moving(source, work=source.elements)
    return [scaling, _moving(source), activation, moving, *[scaling] * scaled]


@dataclass(frozen=True, eq=False)
class _Tensor:
    """Some memory; two names for the same memory are one object."""

    elements: int


_Bundle = tuple[_Tensor, ...]


@dataclass(frozen=True)
class _Turn:
    """A step at its place, and the bundle that comes to it."""

    route: Route
    step: AutogradStep
    bundle: tuple[Shape, ...]
    is_last: bool  # of its layer

    def saved(self, bundle: _Bundle, result: _Tensor) -> _Bundle:
        """What stays of a step that has made this out of the bundle."""
        match self.step.saves:
            case Saves.NOTHING:
                return ()
            case Saves.RESULT:
                return (result,)
            case Saves.BOTH:
                return bundle[:2]
            case Saves.INPUT:
                return (taken(self.route, bundle),)


def _turns(layers: Sequence[LayerPlan], bundle: tuple[Shape, ...]) -> list[list[_Turn]]:
    """Those of each layer. What its first step has put on a road, the others take from there."""
    result: list[list[_Turn]] = []
    for layer in layers:
        turns, route = [], layer.route
        steps = autograd_steps(layer.operation, taken(route, bundle))
        for number, step in enumerate(steps, start=1):
            turns.append(_Turn(route, step, bundle, is_last=number == len(steps)))
            bundle = put(route, bundle, step.result)
            route = Route.SIDE if route in (Route.SPUR, Route.SIDE) else Route.MAIN
        result.append(turns)
    return result


def kept_elements(layers: Sequence[LayerPlan], image: Shape) -> list[int]:
    """Of one sample, of each layer's results: what stays until the backward pass.

    The loss keeps the last result.
    """
    kept = [0] * len(layers)
    made_by = {(came_in := _Tensor(image.elements)): -1}
    saved: set[_Tensor] = set()
    bundle: _Bundle = (came_in,)
    for index, turns in enumerate(_turns(layers, (image,))):
        for turn in turns:
            in_place, elements = turn.step.in_place, turn.step.result.elements
            result = taken(turn.route, bundle) if in_place else _Tensor(elements)
            made_by.setdefault(result, index)
            saved.update(turn.saved(bundle, result))
            kept[index] += turn.step.aside
            bundle = put(turn.route, bundle, result)
    for tensor in {*saved, bundle[0]} - {came_in}:
        kept[made_by[tensor]] += tensor.elements
    return kept


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


class _Follower:
    """One micro-batch on its way through the layers of a stage, and what it holds meanwhile."""

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
        self.holders: Counter[_Tensor] = Counter()  # a tensor counts once, however many hold it
        self.now = self.most = 0
        self.saved: dict[int, _Bundle] = {}  # by turn, for its backward
        self.received: _Bundle = ()  # gradients

    def _hold(self, tensors: Iterable[_Tensor]) -> None:
        for one in tensors:
            self.now += 0 if self.holders[one] else one.elements
            self.holders[one] += 1
        self.most = max(self.most, self.now)

    def _drop(self, tensors: Iterable[_Tensor]) -> None:
        for one in tensors:
            self.holders[one] -= 1
            self.now -= 0 if self.holders[one] else one.elements

    def footprint(self, is_first: bool) -> ActivationFootprint:
        came_in = _new(self.came_in)
        self._hold(came_in)
        inputs, goes_out = self._go_forward(came_in)
        between, forward = self.now, self.most
        self.most = between
        if not is_first:
            # What only passes by gets its gradient at once, as a copy of what was received.
            self._hold(_Tensor(one.elements) for one in goes_out if one in came_in)
        self._go_back(inputs, _new(self.goes_out), is_first)
        return ActivationFootprint(
            came_in=sum(one.elements for one in came_in),
            goes_out=sum(one.elements for one in goes_out),
            between=between,
            forward=forward,
            backward=self.most,
            # What convolutions and linear layers made has a gradient each.
            answers=sum(one.step.result.elements for one in self.turns if one.step.is_product),
        )

    def _go_forward(self, bundle: _Bundle) -> tuple[list[_Bundle], _Bundle]:
        """What comes into a segment is kept if it saves something, and what leaves the stage."""
        inputs = []
        self._hold(bundle)
        for segment in self.segments:
            result = self._forward(segment, bundle, keeps=not self.recomputes)
            is_kept = any(self.turns[index].step.saves_anything for index in segment)
            self._drop(() if is_kept else bundle)
            inputs.append(bundle if is_kept else ())
            bundle = result
        return inputs, bundle

    def _forward(self, segment: range, entering: _Bundle, keeps: bool) -> _Bundle:
        """Run some steps. What they make at the end is held, and what they save if it is kept."""
        bundle = came = entering
        self._hold([*bundle, *came])
        for index in segment:
            route, step = self.turns[index].route, self.turns[index].step
            source = taken(route, bundle)
            # What comes into a segment is needed again: nothing writes over it. A view never does.
            in_place = step.in_place and (source not in entering or step.saves is Saves.NOTHING)
            result = source if in_place else _Tensor(step.result.elements)
            behind = put(route, bundle, result)
            self._hold(behind)
            if keeps:
                self._save(index, bundle, result)
            self._drop(bundle)
            bundle = behind
            if self.turns[index].is_last:  # who calls a layer holds what came to it until then
                self._hold(bundle)
                self._drop(came)
                came = bundle
        self._drop(came)
        return bundle

    def _save(self, index: int, bundle: _Bundle, result: _Tensor) -> None:
        """What autograd keeps."""
        turn = self.turns[index]
        self.saved[index] = (*turn.saved(bundle, result), _Tensor(turn.step.aside))
        self._hold(self.saved[index])

    def _go_back(self, inputs: list[_Bundle], gradients: _Bundle, is_first: bool) -> None:
        """From the last segment to the first; what came into one is free after its turn."""
        self.received = gradients
        self._hold(gradients)
        self._hold(gradients)  # whoever hands them in holds them to the end
        weighty = [index for index, one in enumerate(self.turns) if one.step.is_product]
        first = weighty[0] + 1 if is_first and weighty else 0  # images need no gradient
        for segment, entering in zip(self.segments[::-1], inputs[::-1], strict=True):
            for index in reversed(segment):
                saves = self.turns[index].step.saves_anything
                if self.recomputes and index not in self.saved and saves:
                    self._compute_again(segment, entering)
                gradients = self._backward(index, gradients, has_gradient=index >= first)
            self._drop(entering)

    def _compute_again(self, segment: range, entering: _Bundle) -> None:
        """Up to the last step that saves something, for torch stops there."""
        last = max(index for index in segment if self.turns[index].step.saves_anything)
        begins_only = self.turns[last].step.saves_first
        bundle = self._forward(range(segment[0], last + (not begins_only)), entering, keeps=True)
        if begins_only:
            self._save(last, bundle, _Tensor(0))
        self._drop(bundle)

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
        self._hold(before)
        self.most = max(self.most, self.now + turn.step.work)
        if turn.route in (Route.FORK, Route.SPUR):
            before = self._added(before)
        self._drop(self.saved.pop(index, ()))
        self._drop(gradients)
        return before

    def _added(self, before: _Bundle) -> _Bundle:
        """The two roads of a fork in one: in the place of the second, unless others hold that."""
        new, side, *others = before
        total = _Tensor(new.elements) if side in self.received else side
        self._hold([total])
        self._drop([new, side])
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
