"""Executes a pipeline schedule: one loop over the actions of this process.

While an action runs, the input of the next one arrives, if the schedule has it sent by then
(`plan/timetable.py`). `plan/memory.py` counts by the same rule.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from convoy.batch import Bundle, Targets, expected
from convoy.errors import ConvoyError
from convoy.parallel.channels import P2PChannel, StageChannels, Strides, Transfer, with_strides
from convoy.plan.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
)
from convoy.plan.schedules import SCHEDULES, Schedule
from convoy.plan.timetable import received_ahead, timed_orders


@dataclass(frozen=True)
class _Deferred:
    """One pass through a layer whose weight gradients are computed later."""

    weights: list[nn.Parameter]
    edge: GradientEdge  # where the gradient of the layer's output enters the graph
    gradient: list[Tensor]  # of the output; empty until the first part has come through


@dataclass
class SplitState:
    """What one micro-batch keeps for the second part of its backward pass."""

    deferred: list[_Deferred] = field(default_factory=list)
    immediate: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # known after the first


class SplitBackward:
    """Splits the backward passes of a module."""

    def __init__(self, module: nn.Module) -> None:
        weights = [(layer, own) for layer in module.modules() if (own := _weights(layer))]
        self._deferred = [pair for pair in weights if isinstance(pair[0], nn.Conv2d | nn.Linear)]
        later = {weight for _, own in self._deferred for weight in own}
        self._immediate = [weight for _, own in weights for weight in own if weight not in later]

    @contextmanager
    def record(self, state: SplitState) -> Iterator[None]:
        """Around the forward pass of one micro-batch."""
        handles = [_record(layer, weights, state) for layer, weights in self._deferred]
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
        """The gradients of the inputs."""
        found = torch.autograd.grad(
            outputs, [*inputs, *self._immediate], gradients, retain_graph=True, allow_unused=True
        )
        for weight, gradient in zip(self._immediate, found[len(inputs) :], strict=True):
            state.immediate[weight] = gradient
        return found[: len(inputs)]

    @staticmethod
    def backward_weight(state: SplitState) -> None:
        """The gradients of all weights, into their `grad`."""
        for weight, gradient in state.immediate.items():
            weight.grad = gradient
        for layer in state.deferred:
            found = torch.autograd.grad([layer.edge], layer.weights, layer.gradient)
            for weight, gradient in zip(layer.weights, found, strict=True):
                weight.grad = gradient


def _weights(layer: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in layer.parameters(recurse=False) if weight.requires_grad]


def _record(
    layer: nn.Module, weights: list[nn.Parameter], state: SplitState
) -> torch.utils.hooks.RemovableHandle:
    def record(layer: nn.Module, inputs: Bundle, output: Tensor) -> None:
        del layer, inputs
        gradient: list[Tensor] = []
        # The graph holds this hook, so the hook must hold nothing that holds the graph.
        output.register_hook(gradient.append)  # type: ignore[no-untyped-call]  # untyped in torch
        state.deferred.append(_Deferred(weights, get_gradient_edge(output), gradient))

    return layer.register_forward_hook(record)


Loss = Callable[[Tensor, Targets], Tensor]
# The first stage needs the images, the last one the labels; both may be left out elsewhere.
PipelineInput = tuple[Tensor | None, Targets | None]


@dataclass(frozen=True)
class MicroBatchResult:
    """What the last stage measured. Stays on the device until it is read."""

    loss: Tensor  # mean over the micro-batch
    correct: Tensor  # predictions
    samples: int


def micro_batch_result(logits: Tensor, targets: Targets, loss: Tensor) -> MicroBatchResult:
    """Without the graph of the micro-batch."""
    correct = (logits.detach().argmax(1) == expected(targets)).sum()
    return MicroBatchResult(loss.detach(), correct, len(logits))


class PipelineStage:
    """A module and its channels to both neighbors."""

    def __init__(self, module: nn.Module, channels: StageChannels) -> None:
        self.module = module
        self.channels = channels

    def source(self, action: Action) -> P2PChannel | None:
        """Where the input of an action comes from; None if it is here already."""
        match action:
            case Forward():
                return self.channels.upstream
            case Backward() | BackwardInput():
                return self.channels.downstream if self.channels.receives_gradients else None
            case BackwardWeight():
                return None


S = TypeVar("S", bound=PipelineStage)
T = TypeVar("T")


@dataclass(frozen=True)
class ScheduledAction(Generic[S]):
    """An action of a stage in this process."""

    stage: S
    action: Action
    prefetched: P2PChannel | None = None  # where the input of the next action arrives meanwhile


def execute(
    actions: Iterable[ScheduledAction[S]], perform: Callable[[S, Action, Bundle], T]
) -> Iterator[T]:
    """Perform the actions in order, each with what it receives."""
    for scheduled in actions:
        source = scheduled.stage.source(scheduled.action)
        received = () if source is None else source.receive()
        if scheduled.prefetched is not None:
            scheduled.prefetched.prefetch()
        yield perform(scheduled.stage, scheduled.action, received)


@dataclass
class _Activations:
    """What a micro-batch keeps at a stage between its forward and its backward pass."""

    inputs: Bundle
    outputs: Bundle  # of the last stage: the loss
    strides: dict[int, Strides]  # of the gradients of the inputs, as the layers make them
    split: SplitState | None


class TrainingStage(PipelineStage):
    """Forward and backward passes of one stage in the order of a schedule.

    A tensor lives from its receive to its backward pass. `after_backward` takes the gradients of
    one micro-batch from the weights; micro-batches come in their order.
    """

    def __init__(
        self,
        module: nn.Module,
        channels: StageChannels,
        after_backward: Callable[[], None],
        schedule: Schedule,
        micro_batches: int,
    ) -> None:
        super().__init__(module, channels)
        self.after_backward = after_backward
        self.schedule = schedule
        self.micro_batches = micro_batches
        self.stash: dict[int, _Activations] = {}
        self.stash_seen = 0  # the most micro-batches in it so far
        stage, stages = channels.stage, channels.stages
        self._stash_limit = schedule.peak_stash(stage, stages, micro_batches)
        # The stage before has sent so many, at most, since the last gradient it received from us.
        self._lead_upstream = schedule.unanswered(max(0, stage - 1), stages, micro_batches)
        # A stage that sends no gradients has nobody waiting, so its backward pass stays whole.
        splits = schedule.splits_backward and channels.sends_gradients
        self._split = SplitBackward(module) if splits else None
        self._sent_activations: dict[int, Transfer] = {}
        self._sent_gradients: dict[int, Transfer] = {}

    def start(self) -> None:
        """A new update. Nothing is left of the last one, unless it has failed."""
        self.module.train()
        self.stash.clear()
        self._sent_activations.clear()
        self._sent_gradients.clear()

    def forward(self, micro: int, inputs: Bundle) -> Bundle:
        self._release_gradients(micro - self._lead_upstream + 1)
        strides: dict[int, Strides] = {}
        if self.channels.sends_gradients:
            for index, tensor in enumerate(inputs):
                _note_strides(tensor.requires_grad_(), index, strides)
        split = SplitState() if self._split else None
        with self._split.record(split) if self._split and split else nullcontext():
            outputs: Bundle = self.module(*inputs)
        self.stash[micro] = _Activations(inputs, outputs, strides, split)
        self._check_stash()
        if self.channels.downstream is not None:
            self._sent_activations[micro] = self.channels.downstream.send(outputs)
        return outputs

    def backward(self, micro: int, gradients: Bundle) -> None:
        """The whole pass. Nothing comes back to a stage before the first trained layer."""
        kept = self.stash.pop(micro)
        if self.channels.receives_gradients:
            torch.autograd.backward(*_with_gradient(kept.outputs, gradients))
        if self.channels.sends_gradients:
            found = [tensor.grad for tensor in kept.inputs]
            for tensor in kept.inputs:
                tensor.grad = None
            self._send_gradients(micro, kept, found)
        self._finish_forward_send(micro)
        self.after_backward()

    def backward_input(self, micro: int, gradients: Bundle) -> None:
        """The part that the stage before waits for, if there is one."""
        if self._split is None:
            self.backward(micro, gradients)
            return
        kept = self.stash[micro]
        assert kept.split is not None, "its forward pass was recorded"
        outputs, wanted = _with_gradient(kept.outputs, gradients)
        found = self._split.backward_input(outputs, wanted, kept.inputs, kept.split)
        kept.inputs = kept.outputs = ()  # the other part does not need them
        self._send_gradients(micro, kept, found)
        self._finish_forward_send(micro)

    def backward_weight(self, micro: int) -> None:
        """The other part; already done if the pass was not split."""
        if self._split is None:
            return
        kept = self.stash.pop(micro)
        assert kept.split is not None, "its forward pass was recorded"
        self._split.backward_weight(kept.split)
        self.after_backward()

    def finish(self) -> None:
        """Everything sent has arrived, so its memory may be used again."""
        for transfer in self._sent_gradients.values():
            transfer.wait()
        self._sent_gradients.clear()

    def _check_stash(self) -> None:
        held = len(self.stash)
        self.stash_seen = max(self.stash_seen, held)
        if held > self._stash_limit:
            raise ConvoyError(
                f"stage {self.channels.stage} of {self.channels.stages} holds {held} activation "
                f"sets, but {self.schedule.name} with {self.micro_batches} micro-batches promises "
                f"at most {self._stash_limit}: the order of work is broken; use another "
                "--pipeline-schedule"
            )

    def _send_gradients(
        self, micro: int, kept: _Activations, found: Sequence[Tensor | None]
    ) -> None:
        """Before our own sums, so that the stage before need not wait for them."""
        made = [gradient for gradient in found if gradient is not None]
        assert len(made) == len(found), "the loss does not depend on something received"
        laid = [with_strides(one, kept.strides[index]) for index, one in enumerate(made)]
        assert self.channels.upstream is not None, "it sends gradients"
        self._sent_gradients[micro] = self.channels.upstream.send(laid)

    def _finish_forward_send(self, micro: int) -> None:
        """If its gradient is here, the activations have arrived; if none comes, this waits."""
        transfer = self._sent_activations.pop(micro, None)
        if transfer is not None:
            transfer.wait()

    def _release_gradients(self, end: int) -> None:
        """Free the gradients sent for the micro-batches before `end`. They have arrived: without
        them the stage before could not have sent what has come in."""
        for micro in [micro for micro in self._sent_gradients if micro < end]:
            self._sent_gradients.pop(micro).wait()


class Pipeline:
    """This process's part of a pipeline, which may have one stage; results exist on the last."""

    def __init__(self, stages: Sequence[TrainingStage], loss: Loss) -> None:
        self.stages = list(stages)
        self.loss = loss
        self.stash_seen = 0  # the most activation sets that all stages together held at once
        first, last = self.stages[0], self.stages[-1]
        self._actions = _scheduled(self.stages)
        # At most one of our stages is the first or the last of all, where a micro-batch is needed.
        self._fed = last if last.channels.downstream is None else first
        self._feed: Iterator[PipelineInput] = iter(())
        self._scale = 1.0

    @classmethod
    def single_stage(
        cls, module: nn.Module, loss: Loss, after_backward: Callable[[], None], micro_batches: int
    ) -> "Pipeline":
        """The whole network in one process."""
        schedule = SCHEDULES["sequential"]
        stage = TrainingStage(module, StageChannels(), after_backward, schedule, micro_batches)
        return cls([stage], loss)

    def run(
        self, micro_batches: Iterable[PipelineInput], scale: float = 1.0
    ) -> list[MicroBatchResult]:
        """Train on the micro-batches of an update, which are taken as their forward passes come.

        The loss is multiplied by the scale, and so are all gradients.
        """
        self._feed, self._scale = iter(micro_batches), scale
        for stage in self.stages:
            stage.start()
        results = [one for one in execute(self._actions, self._perform) if one is not None]
        for stage in self.stages:
            stage.finish()
        return results

    def _perform(
        self, stage: TrainingStage, action: Action, received: Bundle
    ) -> MicroBatchResult | None:
        match action:
            case Forward(micro):
                return self._forward(stage, micro, received)
            case Backward(micro):
                stage.backward(micro, received)
            case BackwardInput(micro):
                stage.backward_input(micro, received)
            case BackwardWeight(micro):
                stage.backward_weight(micro)
        return None

    def _forward(
        self, stage: TrainingStage, micro: int, received: Bundle
    ) -> MicroBatchResult | None:
        images, targets = next(self._feed) if stage is self._fed else (None, None)
        if stage.channels.upstream is None:
            assert images is not None, "the first stage needs images"
            received = (images,)
        outputs = stage.forward(micro, received)
        self.stash_seen = max(self.stash_seen, sum(len(one.stash) for one in self.stages))
        if stage.channels.downstream is not None:
            return None
        assert targets is not None, "the last stage needs labels"
        (logits,) = outputs
        loss = self.loss(logits, targets)
        stage.stash[micro].outputs = (loss if self._scale == 1 else loss * self._scale,)
        return micro_batch_result(logits, targets, loss)


def _scheduled(stages: Sequence[TrainingStage]) -> list[ScheduledAction[TrainingStage]]:
    """What this process does in an update."""
    by_index = {stage.channels.stage: stage for stage in stages}
    first = stages[0]
    place = first.channels
    orders = timed_orders(first.schedule, place.stages, first.micro_batches)
    own = orders[place.stage]
    scheduled = []
    for timed, following, is_ahead in zip_longest(own, own[1:], received_ahead(orders, own)):
        source = by_index[following.stage].source(following.action) if is_ahead else None
        scheduled.append(ScheduledAction(by_index[timed.stage], timed.action, source))
    return scheduled


def _with_gradient(outputs: Bundle, gradients: Bundle) -> tuple[list[Tensor], list[Tensor] | None]:
    """The outputs that were computed from weights, with their gradients; a loss needs none."""
    if not gradients:
        return list(outputs), None
    pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    return [output for output, _ in pairs], [gradient for _, gradient in pairs]


def _note_strides(tensor: Tensor, index: int, strides: dict[int, Strides]) -> None:
    """torch copies the gradient of a leaf to the strides of the leaf; the sender must undo that.

    Only the strides are kept: as long as something else holds the gradient, torch copies it.
    """

    def note(gradient: Tensor) -> None:
        strides[index] = gradient.stride()

    tensor.register_hook(note)  # type: ignore[no-untyped-call]  # torch leaves it untyped
