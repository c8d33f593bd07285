"""Activation memory of one micro-batch in a stage, simulated tensor by tensor.

forward    ▁▂▃▄▅▆   saved tensors accumulate; with recomputation they are freed at once
stashed    ▂▂▂▂▂▂   inputs, outputs and saved tensors
backward   ▆▇▆▅▃▂   with recomputation each segment is filled again right before its backward
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    ModuleSpec,
    MultiplySpec,
    NormSpec,
    OpSpec,
    PadChannelsSpec,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
    Route,
    Shape,
    SpatialMeanSpec,
    bundle_after,
    layer_input,
)

FP32_BYTES, FP16_BYTES = 4, 2
INDEX_ELEMENTS = 2  # an int64 index takes the space of two fp32 elements


class SavedTensors(Enum):
    """Which tensors autograd saves for the backward pass."""

    NOTHING = "nothing"
    INPUT = "input"
    INPUTS = "both inputs"
    OUTPUT = "output"


@dataclass(frozen=True)
class AutogradStep:
    """One autograd operation. Most layers are a single one; others are a chain."""

    output: Shape
    saved: SavedTensors = SavedTensors.INPUT
    in_place: bool = False  # overwrites its input
    is_matmul: bool = False  # of weights and input (convolution or linear)
    saves_before_run: bool = False  # saves its tensors before it computes
    extra_saved: int = 0  # elements saved besides input or output
    backward_workspace: int = 0  # elements besides the gradient
    passes_gradient_through: bool = False  # the gradient is the same tensor

    @property
    def needs_recompute(self) -> bool:
        return self.saved is not SavedTensors.NOTHING or self.extra_saved > 0


def autograd_steps(operation: OpSpec, source: Shape) -> list[AutogradStep]:
    """The autograd operations of a layer, in order; the last one produces its output."""
    match operation:
        case ConvSpec(kernel=kernel, stride=stride, padding="same") if kernel > 1 and stride > 1:
            return [_padding_step(source, kernel, stride), _autograd_step(operation, source)]
        case MaxPoolSpec(padding="same"):
            return [_padding_step(source, 3, 2), _autograd_step(operation, source)]
        case NormSpec(kind="group"):
            # Two passes subtract the mean first; interleaved groups transpose channels twice.
            means = [_pointwise_step(source)] * operation.stable
            transpose = [AutogradStep(source, SavedTensors.NOTHING)] * operation.interleaved_groups
            return [*means, *transpose, AutogradStep(source), *transpose]
        case ProxyActivationSpec(recompute=False):
            return _proxy_steps(operation.kind, operation.scaled, source)
        case ProxySqueezeExciteSpec(proxy) if not proxy.recompute:
            # Without the 1 × 1 convolutions; the gate and the scale are one product.
            return _proxy_steps(proxy.kind, True, source)
        case _:
            return [_autograd_step(operation, source)]


def _autograd_step(operation: OpSpec, source: Shape) -> AutogradStep:
    output = operation.output_shape(source)
    match operation:
        case ConvSpec() | LinearSpec():
            return AutogradStep(output, is_matmul=True, saves_before_run=True)
        case ActivationSpec(kind="relu"):
            return AutogradStep(output, SavedTensors.OUTPUT, in_place=True)
        case ActivationSpec(kind="sigmoid"):
            return AutogradStep(output, SavedTensors.OUTPUT)
        case ActivationSpec():
            return AutogradStep(output, saves_before_run=True)
        case AddSpec() | ConcatSpec() | SpatialMeanSpec() | GlobalPoolSpec():
            return AutogradStep(output, SavedTensors.NOTHING)
        case FlattenSpec():
            return AutogradStep(output, SavedTensors.NOTHING, in_place=True)
        case MultiplySpec():  # the gate's gradient is a product before it is summed
            step = AutogradStep(output, SavedTensors.INPUTS, saves_before_run=True)
            return replace(step, backward_workspace=source.elements)
        case MaxPoolSpec():
            return AutogradStep(output, extra_saved=INDEX_ELEMENTS * output.elements)
        case PadChannelsSpec(stride):
            # The strides of both dimensions are undone one after the other.
            intermediate = source.channels * source.size * output.size if stride > 1 else 0
            return AutogradStep(output, SavedTensors.NOTHING, backward_workspace=intermediate)
        case DropoutSpec(rate):
            return _masking_step(output, output.elements if rate else 0)
        case DropPathSpec(rate):
            return _masking_step(output, 1 if rate else 0)
        case ModuleSpec(saved_elements=saved):
            return AutogradStep(output, extra_saved=saved)
        case ProxyActivationSpec(scaled=False):
            # The recomputed activation.
            return AutogradStep(output, backward_workspace=source.elements)
        case ProxyActivationSpec() | ProxySqueezeExciteSpec():
            # The recomputed activation, and a product before its sum.
            return AutogradStep(output, backward_workspace=3 * source.elements)
        case _:
            return AutogradStep(output)


def _masking_step(output: Shape, mask: int) -> AutogradStep:
    return AutogradStep(output, SavedTensors.NOTHING, saves_before_run=True, extra_saved=mask)


def _padding_step(source: Shape, kernel: int, stride: int) -> AutogradStep:
    """A padded copy, so that ⌈size ÷ stride⌉ windows fit."""
    added = max((-(-source.size // stride) - 1) * stride + kernel - source.size, 0)
    return AutogradStep(Shape(source.channels, source.size + added), SavedTensors.NOTHING)


def _pointwise_step(source: Shape, work: int = 0) -> AutogradStep:
    return AutogradStep(
        source, SavedTensors.NOTHING, passes_gradient_through=True, backward_workspace=work
    )


def _proxy_steps(kind: str, scaled: bool, source: Shape) -> list[AutogradStep]:
    """γ·x, + β, the activation, − μ, ÷ σ."""
    # The gradient of a scale is an image-sized product before it is summed.
    scaling = AutogradStep(source, saves_before_run=True, backward_workspace=source.elements)
    saves = SavedTensors.OUTPUT if kind == "relu" else SavedTensors.INPUT
    activation = AutogradStep(source, saves, saves_before_run=saves is SavedTensors.INPUT)
    centering = _pointwise_step(source, work=source.elements)
    return [scaling, _pointwise_step(source), activation, centering, *[scaling] * scaled]


@dataclass(frozen=True, eq=False)
class _Tensor:
    """A block of memory, compared by identity."""

    elements: int


_Bundle = tuple[_Tensor, ...]


@dataclass(frozen=True)
class _LayerStep:
    """An autograd operation with its route and the shapes of its input bundle."""

    route: Route
    step: AutogradStep
    bundle: tuple[Shape, ...]
    is_last: bool  # of its layer

    def saved_tensors(self, bundle: _Bundle, output: _Tensor) -> _Bundle:
        match self.step.saved:
            case SavedTensors.NOTHING:
                return ()
            case SavedTensors.OUTPUT:
                return (output,)
            case SavedTensors.INPUTS:
                return bundle[:2]
            case SavedTensors.INPUT:
                return (layer_input(self.route, bundle),)


def _layer_steps(layers: Sequence[LayerPlan], bundle: tuple[Shape, ...]) -> list[list[_LayerStep]]:
    """The steps of each layer. Each later step of a layer reads the output of the one before."""
    steps_by_layer: list[list[_LayerStep]] = []
    for layer in layers:
        layer_steps, route = [], layer.route
        steps = autograd_steps(layer.operation, layer_input(route, bundle))
        for number, step in enumerate(steps, start=1):
            layer_steps.append(_LayerStep(route, step, bundle, is_last=number == len(steps)))
            bundle = bundle_after(route, bundle, step.output)
            route = Route.SIDE if route in (Route.BRANCH, Route.SIDE) else Route.MAIN
        steps_by_layer.append(layer_steps)
    return steps_by_layer


def saved_elements(layers: Sequence[LayerPlan], image: Shape) -> list[int]:
    """Elements of each layer's outputs that are saved for the backward pass, per sample.

    The loss saves the last output.
    """
    counts = [0] * len(layers)
    producer = {(image_tensor := _Tensor(image.elements)): -1}
    saved: set[_Tensor] = set()
    bundle: _Bundle = (image_tensor,)
    for index, steps in enumerate(_layer_steps(layers, (image,))):
        for step in steps:
            in_place, elements = step.step.in_place, step.step.output.elements
            output = layer_input(step.route, bundle) if in_place else _Tensor(elements)
            producer.setdefault(output, index)
            saved.update(step.saved_tensors(bundle, output))
            counts[index] += step.step.extra_saved
            bundle = bundle_after(step.route, bundle, output)
    for tensor in {*saved, bundle[0]} - {image_tensor}:
        counts[producer[tensor]] += tensor.elements
    return counts


@dataclass(frozen=True)
class ActivationFootprint:
    """Elements per sample that one micro-batch occupies in a stage."""

    input_elements: int
    output_elements: int
    stashed: int  # between forward and backward: inputs, outputs and saved tensors
    peak_forward: int  # peak during the forward pass
    peak_backward: int  # peak during the backward pass
    weight_gradient_inputs: int = 0  # gradients that a split backward keeps


def activation_footprint(
    layers: Sequence[LayerPlan],
    costs: Sequence[LayerCost],
    segment_starts: Sequence[int] | None,
    is_first: bool,
) -> ActivationFootprint:
    """Simulate the forward and backward pass of a micro-batch through a stage.

    `segment_starts` are the first layers of the recomputed segments; None disables recomputation.
    """
    return _MemorySimulator(layers, costs, segment_starts).footprint(is_first)


class _MemorySimulator:
    """Tracks the memory of one micro-batch through the layers of a stage."""

    def __init__(
        self,
        layers: Sequence[LayerPlan],
        costs: Sequence[LayerCost],
        segment_starts: Sequence[int] | None,
    ) -> None:
        per_layer = _layer_steps(layers, costs[0].input_shapes)
        ends = [0, *accumulate(map(len, per_layer))]
        self.steps = [step for steps in per_layer for step in steps]
        self.input_shapes, self.output_shapes = costs[0].input_shapes, costs[-1].output_shapes
        self.recomputes = segment_starts is not None
        bounds = pairwise(ends[layer] for layer in [*(segment_starts or [0]), len(layers)])
        self.segments = [range(*bound) for bound in bounds]
        self.ref_counts: Counter[_Tensor] = Counter()  # a tensor is counted once
        self.allocated = self.peak = 0
        self.saved: dict[int, _Bundle] = {}  # by step index
        self.received_gradients: _Bundle = ()  # from the next stage

    def _retain(self, tensors: Iterable[_Tensor]) -> None:
        for tensor in tensors:
            self.allocated += 0 if self.ref_counts[tensor] else tensor.elements
            self.ref_counts[tensor] += 1
        self.peak = max(self.peak, self.allocated)

    def _release(self, tensors: Iterable[_Tensor]) -> None:
        for tensor in tensors:
            self.ref_counts[tensor] -= 1
            self.allocated -= 0 if self.ref_counts[tensor] else tensor.elements

    def footprint(self, is_first: bool) -> ActivationFootprint:
        inputs = _new(self.input_shapes)
        self._retain(inputs)
        segment_inputs, outputs = self._run_forward(inputs)
        stashed, peak_forward = self.allocated, self.peak
        self.peak = stashed
        if not is_first:
            # The gradient of a tensor that passes through is a copy of the received one.
            self._retain(_Tensor(tensor.elements) for tensor in outputs if tensor in inputs)
        self._run_backward(segment_inputs, _new(self.output_shapes), is_first)
        return ActivationFootprint(
            input_elements=sum(tensor.elements for tensor in inputs),
            output_elements=sum(tensor.elements for tensor in outputs),
            stashed=stashed,
            peak_forward=peak_forward,
            peak_backward=self.peak,
            # The outputs of convolutions and linear layers have a gradient each.
            weight_gradient_inputs=sum(
                step.step.output.elements for step in self.steps if step.step.is_matmul
            ),
        )

    def _run_forward(self, bundle: _Bundle) -> tuple[list[_Bundle], _Bundle]:
        """Return the stored input of each segment that saves something, and the stage's outputs."""
        inputs = []
        self._retain(bundle)
        for segment in self.segments:
            output = self._forward_segment(segment, bundle, saves=not self.recomputes)
            is_stored = any(self.steps[index].step.needs_recompute for index in segment)
            self._release(() if is_stored else bundle)
            inputs.append(bundle if is_stored else ())
            bundle = output
        return inputs, bundle

    def _forward_segment(self, segment: range, segment_input: _Bundle, saves: bool) -> _Bundle:
        """Run some steps; retain their final bundle and, if `saves`, the saved tensors."""
        bundle = layer_bundle = segment_input
        self._retain([*bundle, *layer_bundle])
        for index in segment:
            route, step = self.steps[index].route, self.steps[index].step
            source = layer_input(route, bundle)
            # The input of a segment is needed again, so only a view may share its memory.
            in_place = step.in_place and (
                source not in segment_input or step.saved is SavedTensors.NOTHING
            )
            output = source if in_place else _Tensor(step.output.elements)
            after = bundle_after(route, bundle, output)
            self._retain(after)
            if saves:
                self._save(index, bundle, output)
            self._release(bundle)
            bundle = after
            if self.steps[index].is_last:  # the caller holds a layer's input until it returns
                self._retain(bundle)
                self._release(layer_bundle)
                layer_bundle = bundle
        self._release(layer_bundle)
        return bundle

    def _save(self, index: int, bundle: _Bundle, output: _Tensor) -> None:
        step = self.steps[index]
        self.saved[index] = (*step.saved_tensors(bundle, output), _Tensor(step.step.extra_saved))
        self._retain(self.saved[index])

    def _run_backward(self, inputs: list[_Bundle], gradients: _Bundle, is_first: bool) -> None:
        """Run the segments backward and free the input of each afterwards."""
        self.received_gradients = gradients
        self._retain(gradients)
        self._retain(gradients)  # the caller holds them until the end
        matmuls = [index for index, step in enumerate(self.steps) if step.step.is_matmul]
        first = matmuls[0] + 1 if is_first and matmuls else 0  # images need no gradient
        for segment, segment_input in zip(self.segments[::-1], inputs[::-1], strict=True):
            for index in reversed(segment):
                is_needed = self.steps[index].step.needs_recompute
                if self.recomputes and index not in self.saved and is_needed:
                    self._recompute(segment, segment_input)
                gradients = self._backward_step(index, gradients, has_gradient=index >= first)
            self._release(segment_input)

    def _recompute(self, segment: range, segment_input: _Bundle) -> None:
        """Recompute up to the last step that saves something, where torch stops early."""
        last = max(index for index in segment if self.steps[index].step.needs_recompute)
        stops_early = self.steps[last].step.saves_before_run
        bundle = self._forward_segment(
            range(segment[0], last + (not stops_early)), segment_input, saves=True
        )
        if stops_early:
            self._save(last, bundle, _Tensor(0))
        self._release(bundle)

    def _backward_step(self, index: int, gradients: _Bundle, has_gradient: bool) -> _Bundle:
        """Compute the gradients of a step's input bundle from those of its output bundle."""
        step = self.steps[index]
        source = layer_input(step.route, step.bundle)
        new = _Tensor(source.elements if has_gradient else 0)
        if step.step.passes_gradient_through:
            input_gradients = gradients
        elif step.step.saved is SavedTensors.INPUTS:
            input_gradients = (*_new(step.bundle[:2]), *gradients[1:])
        elif step.route is Route.JOIN:  # both branches of a sum get the same gradient
            input_gradients = (gradients[0], *gradients)
        elif step.route is Route.BRANCH:
            input_gradients = (new, gradients[0], *gradients[2:])
        else:
            input_gradients = bundle_after(
                Route.SIDE if step.route is Route.SIDE else Route.MAIN, gradients, new
            )
        self._retain(input_gradients)
        self.peak = max(self.peak, self.allocated + step.step.backward_workspace)
        if step.route in (Route.FORK, Route.BRANCH):
            input_gradients = self._accumulate_fork(input_gradients)
        self._release(self.saved.pop(index, ()))
        self._release(gradients)
        return input_gradients

    def _accumulate_fork(self, input_gradients: _Bundle) -> _Bundle:
        """Add the gradients of both branches of a fork, in place unless the tensor is shared."""
        new, side, *rest = input_gradients
        total = _Tensor(new.elements) if side in self.received_gradients else side
        self._retain([total])
        self._release([new, side])
        return (total, *rest)


def _new(bundle: tuple[Shape, ...]) -> _Bundle:
    return tuple(_Tensor(shape.elements) for shape in bundle)
