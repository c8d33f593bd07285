"""Executes a pipeline schedule: one loop over the actions of this process.

The input of the next action is received while the current one runs, provided that the schedule
sends it by then (`planning/timetable.py`). `planning/memory.py` follows the same rule.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from convoy.batch import Bundle, MixedTargets, Targets
from convoy.errors import ConvoyError
from convoy.parallel.channels import StageChannel, StageChannels, Strides, Transfer, to_strides
from convoy.planning.actions import Action, Backward, BackwardInput, BackwardWeight, Forward
from convoy.planning.schedules import Schedule
from convoy.planning.timetable import TimedAction, prefetched_inputs, timed_actions


@dataclass(frozen=True)
class _DeferredLayer:
    """One pass through a layer whose weight gradients are computed later."""

    weights: list[nn.Parameter]
    edge: GradientEdge  # where the gradient of the layer's output enters the graph
    gradient: list[Tensor]  # of the output; empty until the input backward has run


@dataclass
class SplitState:
    """State of one micro-batch between its input backward and its weight backward."""

    deferred: list[_DeferredLayer] = field(default_factory=list)
    # Gradients known after the input backward.
    immediate: dict[nn.Parameter, Tensor] = field(default_factory=dict)


class SplitBackward:
    """Splits the backward pass of a module into input gradients and weight gradients."""

    def __init__(self, module: nn.Module) -> None:
        pairs = [(layer, _trainable_weights(layer)) for layer in module.modules()]
        owners = Counter(weight for _, weights in pairs for weight in weights)
        self._deferred = [
            (layer, weights)
            for layer, weights in pairs
            if weights and isinstance(layer, nn.Conv2d | nn.Linear)
            if all(owners[weight] == 1 for weight in weights)
        ]
        deferred = {weight for _, weights in self._deferred for weight in weights}
        self._immediate = [
            weight for _, weights in pairs for weight in weights if weight not in deferred
        ]

    @contextmanager
    def record(self, state: SplitState) -> Iterator[None]:
        """Record the layers of a forward pass that have deferred weight gradients."""
        handles = [
            layer.register_forward_hook(partial(_defer_hook, state, weights))
            for layer, weights in self._deferred
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def backward_input(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor] | None,
        inputs: Sequence[Tensor],
        state: SplitState,
    ) -> tuple[Tensor | None, ...]:
        immediate = [*self._immediate, *_undefer_repeated(state)]
        computed = torch.autograd.grad(
            outputs, [*inputs, *immediate], gradients, retain_graph=True, allow_unused=True
        )
        for weight, gradient in zip(immediate, computed[len(inputs) :], strict=True):
            state.immediate[weight] = gradient
        return computed[: len(inputs)]

    @staticmethod
    def backward_weight(state: SplitState) -> None:
        """Compute the gradients of all weights and store them in `grad`."""
        for weight, gradient in state.immediate.items():
            weight.grad = gradient
        for layer in state.deferred:
            computed = torch.autograd.grad([layer.edge], layer.weights, layer.gradient)
            for weight, gradient in zip(layer.weights, computed, strict=True):
                weight.grad = gradient


def _undefer_repeated(state: SplitState) -> list[nn.Parameter]:
    """Remove layers that ran several times, and return their weights: the graph of a later pass
    contains the earlier ones."""
    passes = Counter(weight for layer in state.deferred for weight in layer.weights)
    state.deferred = [
        layer for layer in state.deferred if all(passes[weight] == 1 for weight in layer.weights)
    ]
    return [weight for weight, count in passes.items() if count > 1]


def _trainable_weights(layer: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in layer.parameters(recurse=False) if weight.requires_grad]


def _defer_hook(
    state: SplitState, weights: list[nn.Parameter], layer: nn.Module, inputs: Bundle, output: Tensor
) -> None:
    del layer, inputs
    gradient: list[Tensor] = []
    # The graph references this hook, so the hook must not reference the graph.
    output.register_hook(gradient.append)  # type: ignore[no-untyped-call]  # untyped in torch
    state.deferred.append(_DeferredLayer(weights, get_gradient_edge(output), gradient))


Loss = Callable[[Tensor, Targets], Tensor]
# The first stage needs the images, the last one the targets; other stages need neither.
PipelineInput = tuple[Tensor | None, Targets | None]


@dataclass(frozen=True)
class MicroBatchResult:
    """Loss and accuracy from the last stage. They stay on the device until they are read."""

    loss: Tensor  # mean over the micro-batch
    correct: Tensor  # predictions
    samples: int


def micro_batch_result(logits: Tensor, targets: Targets, loss: Tensor) -> MicroBatchResult:
    """Detach the result from the graph. For mixed samples the original label counts as correct."""
    labels = targets.labels[0] if isinstance(targets, MixedTargets) else targets
    correct = (logits.detach().argmax(1) == labels).sum()
    return MicroBatchResult(loss.detach(), correct, len(logits))


InputT_contra = TypeVar("InputT_contra", contravariant=True)
InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class Objective(Protocol[InputT_contra, ResultT_co]):
    """What a micro-batch feeds to the first stage, and what the last stage computes from it."""

    def first_inputs(self, micro_batch: InputT_contra) -> Bundle:
        """The inputs of the first stage."""

    def evaluate(self, outputs: Bundle, micro_batch: InputT_contra) -> tuple[Tensor, ResultT_co]:
        """The loss of the last stage's outputs, and the result of the micro-batch."""


class Classification:
    """Images in, logits out; the loss compares them with the targets."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def first_inputs(self, micro_batch: PipelineInput) -> Bundle:
        images, _ = micro_batch
        assert images is not None, "the first stage needs images"
        return (images,)

    def evaluate(
        self, outputs: Bundle, micro_batch: PipelineInput
    ) -> tuple[Tensor, MicroBatchResult]:
        _, targets = micro_batch
        assert targets is not None, "the last stage needs labels"
        (logits,) = outputs
        loss = self.loss(logits, targets)
        return loss, micro_batch_result(logits, targets, loss)


_NOTHING_SENT = Transfer((), [])


@dataclass
class _Activations:
    """Tensors that a stage stashes for a micro-batch between forward and backward."""

    inputs: Bundle
    outputs: Bundle  # of the last stage: the loss
    strides: dict[int, Strides]  # of the input gradients, as the layers compute them
    split: SplitState | None


class TrainingStage:
    """Forward and backward passes of one stage.

    A received tensor lives until its backward pass. `after_backward` collects the gradients of one
    micro-batch from the parameters; it is called in micro-batch order.
    """

    def __init__(
        self,
        module: nn.Module,
        channels: StageChannels,
        after_backward: Callable[[], None],
        schedule: Schedule,
        micro_batches: int,
    ) -> None:
        self.module = module
        self.channels = channels
        self.after_backward = after_backward
        self.schedule = schedule
        self.micro_batches = micro_batches
        self.stash: dict[int, _Activations] = {}
        self.peak_stash_seen = 0  # the maximum number of micro-batches so far
        stage, stages = channels.stage, channels.stages
        self._stash_limit = schedule.peak_stash(stage, stages, micro_batches)
        # How many micro-batches the previous stage may be ahead of the last gradient it received.
        self._lead_upstream = schedule.max_lead(max(0, stage - 1), stages, micro_batches)
        # No stage waits for one that sends no gradients, so its backward pass is not split.
        splits = schedule.splits_backward and channels.sends_gradients
        self._split = SplitBackward(module) if splits else None
        self._sent_activations: dict[int, Transfer] = {}
        self._sent_gradients: dict[int, Transfer] = {}

    def start(self) -> None:
        """Start an update. Leftovers exist only if the last update failed."""
        self.module.train()
        self.stash.clear()
        self._sent_activations.clear()
        self._sent_gradients.clear()

    def forward(self, micro: int, inputs: Bundle) -> Bundle:
        # These have arrived: otherwise the previous stage could not have sent the inputs.
        arrived = micro - self._lead_upstream
        for sent in [sent for sent in self._sent_gradients if sent <= arrived]:
            self._sent_gradients.pop(sent).wait()
        strides: dict[int, Strides] = {}
        for index, tensor in self._inputs_with_gradients(inputs):
            _record_gradient_strides(tensor.requires_grad_(), index, strides)
        split = SplitState() if self._split else None
        with self._split.record(split) if self._split and split else nullcontext():
            outputs: Bundle = self.module(*inputs)
        self.stash[micro] = _Activations(inputs, outputs, strides, split)
        stashed = len(self.stash)
        self.peak_stash_seen = max(self.peak_stash_seen, stashed)
        if stashed > self._stash_limit:
            raise ConvoyError(
                f"stage {self.channels.stage} of {self.channels.stages} "
                f"stashes {stashed} micro-batches, but {self.schedule.name} with "
                f"{self.micro_batches} micro-batches allows at most {self._stash_limit}: the "
                "order of its actions is invalid; use another --pipeline-schedule"
            )
        if self.channels.downstream is not None:
            self._sent_activations[micro] = self.channels.downstream.send(outputs)
        return outputs

    def backward(self, micro: int, gradients: Bundle) -> None:
        """Run the full backward pass. A stage before all trained layers receives no gradients."""
        activations = self.stash.pop(micro)
        if self.channels.receives_gradients:
            torch.autograd.backward(*self._outputs_with_gradients(activations, gradients))
        if self.channels.sends_gradients:
            inputs = self._inputs_with_gradients(activations.inputs)
            gradients_in = [(index, tensor.grad) for index, tensor in inputs]
            for _, tensor in inputs:
                tensor.grad = None
            self._send_gradients(micro, activations, gradients_in)
        # The activations have arrived if their gradient is here; without gradients this waits.
        self._sent_activations.pop(micro, _NOTHING_SENT).wait()
        self.after_backward()

    def backward_input(self, micro: int, gradients: Bundle) -> None:
        """Compute the input gradients, which the previous stage waits for."""
        if self._split is None:
            self.backward(micro, gradients)
            return
        activations = self.stash[micro]
        assert activations.split is not None, "the forward pass was not recorded"
        outputs, gradients_out = self._outputs_with_gradients(activations, gradients)
        inputs = self._inputs_with_gradients(activations.inputs)
        computed = self._split.backward_input(
            outputs, gradients_out, [tensor for _, tensor in inputs], activations.split
        )
        gradients_in = [
            (index, gradient) for (index, _), gradient in zip(inputs, computed, strict=True)
        ]
        self._send_gradients(micro, activations, gradients_in)
        activations.inputs = activations.outputs = ()  # the weight backward does not need them
        self._sent_activations.pop(micro, _NOTHING_SENT).wait()

    def backward_weight(self, micro: int) -> None:
        """Compute the weight gradients; already done if the pass is not split."""
        if self._split is None:
            return
        activations = self.stash.pop(micro)
        assert activations.split is not None, "the forward pass was not recorded"
        self._split.backward_weight(activations.split)
        self.after_backward()

    def finish(self) -> None:
        """Wait until all gradients have been sent, so that their memory may be reused."""
        for transfer in self._sent_gradients.values():
            transfer.wait()
        self._sent_gradients.clear()

    def _inputs_with_gradients(self, inputs: Bundle) -> list[tuple[int, Tensor]]:
        """The inputs whose gradients are sent, and their indices."""
        if not self.channels.sends_gradients:
            return []
        return _select(inputs, self.channels.inputs_with_gradients)

    def _outputs_with_gradients(
        self, activations: _Activations, gradients: Bundle
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """The outputs that require a gradient, and their gradients; a loss needs none."""
        if not gradients:
            return list(activations.outputs), None
        outputs = _select(activations.outputs, self.channels.outputs_with_gradients)
        pairs = [
            (output, gradient)
            for (_, output), gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad
        ]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]

    def _send_gradients(
        self,
        micro: int,
        activations: _Activations,
        gradients: Sequence[tuple[int, Tensor | None]],
    ) -> None:
        """Send input gradients first, so that the previous stage can continue."""
        bundle = []
        for index, gradient in gradients:
            if gradient is None:  # the loss does not depend on this input
                bundle.append(torch.zeros_like(activations.inputs[index]))
            else:
                bundle.append(to_strides(gradient, activations.strides[index]))
        assert self.channels.upstream is not None, "only a stage with an upstream sends gradients"
        self._sent_gradients[micro] = self.channels.upstream.send(bundle)


def _select(bundle: Bundle, indices: tuple[int, ...] | None) -> list[tuple[int, Tensor]]:
    """The tensors at some indices, or all of them."""
    chosen = range(len(bundle)) if indices is None else indices
    return [(index, bundle[index]) for index in chosen]


@dataclass(frozen=True)
class _ScheduledAction:
    """An action of one of this process's stages, and the channels it uses."""

    stage: TrainingStage
    action: Action
    source: StageChannel | None  # of its input; None if the stage creates it
    prefetch_from: StageChannel | None  # channel of the next input, which is received meanwhile


class PipelineExecutor(Generic[InputT, ResultT]):
    """The stages of this process, which may be a single one; only the last stage has results."""

    def __init__(
        self, stages: Sequence[TrainingStage], objective: Objective[InputT, ResultT]
    ) -> None:
        self.stages = list(stages)
        self.objective = objective
        self.peak_stash_seen = 0  # the maximum number of stashed micro-batches, over all stages
        self._actions = _schedule_actions(self.stages)
        self._has_last = self.stages[-1].channels.downstream is None
        entry_stages = [stage for stage in self.stages if stage.channels.upstream is None]
        # Each of them reads a micro-batch in its forward pass; concurrent ones share it.
        self._fed_stages = entry_stages or self.stages[-1 if self._has_last else 0 :][:1]
        self._micro_batches: Iterator[InputT] = iter(())
        self._entered: dict[int, InputT] = {}  # read, and needed by later stages
        self._scale = 1.0

    def run(self, micro_batches: Iterable[InputT], scale: float = 1.0) -> list[ResultT]:
        """Train on the micro-batches of an update, which are read when their forward pass starts.

        The loss, and therefore every gradient, is multiplied by the scale.
        """
        self._micro_batches, self._scale = iter(micro_batches), scale
        self._entered.clear()
        results = []
        for stage in self.stages:
            stage.start()
        for scheduled in self._actions:
            stage, source = scheduled.stage, scheduled.source
            received = () if source is None else source.receive()
            if scheduled.prefetch_from is not None:
                scheduled.prefetch_from.prefetch()
            match scheduled.action:
                case Forward(micro):
                    results += self._forward(stage, micro, received)
                case Backward(micro):
                    stage.backward(micro, received)
                case BackwardInput(micro):
                    stage.backward_input(micro, received)
                case BackwardWeight(micro):
                    stage.backward_weight(micro)
        for stage in self.stages:
            stage.finish()
        return results

    def _forward(self, stage: TrainingStage, micro: int, received: Bundle) -> list[ResultT]:
        """Run a forward pass; only the last stage returns a result."""
        if stage in self._fed_stages and micro not in self._entered:
            self._entered[micro] = next(self._micro_batches)
        if stage.channels.upstream is None:
            received = self.objective.first_inputs(self._entered[micro])
        if stage is self._fed_stages[-1] and not self._has_last:
            del self._entered[micro]
        outputs = stage.forward(micro, received)
        stashed = sum(len(other.stash) for other in self.stages)
        self.peak_stash_seen = max(self.peak_stash_seen, stashed)
        if stage.channels.downstream is not None:
            return []
        loss, result = self.objective.evaluate(outputs, self._entered.pop(micro))
        stage.stash[micro].outputs = (loss if self._scale == 1 else loss * self._scale,)
        return [result]


TrainingPipeline = PipelineExecutor[PipelineInput, MicroBatchResult]


def classification_pipeline(stages: Sequence[TrainingStage], loss: Loss) -> TrainingPipeline:
    return PipelineExecutor(stages, Classification(loss))


def _schedule_actions(stages: Sequence[TrainingStage]) -> list[_ScheduledAction]:
    """The actions of the stages of this process, in the order in which they run."""
    by_index: dict[int, list[TrainingStage]] = {}
    for stage in stages:  # concurrent stages have the same index
        by_index.setdefault(stage.channels.stage, []).append(stage)
    first = stages[0]
    orders = timed_actions(first.schedule, first.channels.stages, first.micro_batches)
    timed_here = _merge_orders([order for order in orders if order[0].stage in by_index])
    pairs = [(timed, stage) for timed in timed_here for stage in by_index[timed.stage]]
    sources = [_input_channel(stage.channels, timed.action) for timed, stage in pairs]
    prefetched = prefetched_inputs(orders, [timed for timed, _ in pairs])
    return [
        _ScheduledAction(stage, timed.action, source, following if early else None)
        for (timed, stage), source, following, early in zip(
            pairs, sources, [*sources[1:], None], prefetched, strict=True
        )
    ]


def _merge_orders(orders: Sequence[Sequence[TimedAction]]) -> list[TimedAction]:
    """Merge the orders of several stages by column; actions of one column are independent."""
    merged = [timed for order in orders for timed in order]
    return sorted(merged, key=lambda timed: timed.column) if len(orders) > 1 else merged


def _input_channel(channels: StageChannels, action: Action) -> StageChannel | None:
    match action:
        case Forward():
            return channels.upstream
        case Backward() | BackwardInput():
            return channels.downstream if channels.receives_gradients else None
        case BackwardWeight():
            return None


def _record_gradient_strides(tensor: Tensor, index: int, strides: dict[int, Strides]) -> None:
    """Record the strides of a gradient: torch copies it to the strides of the leaf, and the sender
    must undo that.

    Only the strides are stored: torch copies a gradient as long as anything else references it.
    """

    def record(gradient: Tensor) -> None:
        strides[index] = gradient.stride()

    tensor.register_hook(record)  # type: ignore[no-untyped-call]  # torch leaves it untyped
