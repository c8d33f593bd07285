"""A slice of layers with its static metadata, as torch's pipeline runtime wants it.

torch's own stage allocates what it receives for every micro-batch of an update, and the runtime
holds what was sent until the update ends. Here a tensor lives from its receive to its backward.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from convoy.errors import ConvoyError
from convoy.parallel.halves import Halves, Tape
from convoy.parallel.link import Group, Link, Moving, Size, Strides, laid, roads_of
from convoy.parallel.pipeline import MicroBatch
from convoy.parallel.slice import Bundle
from convoy.parallel.targets import Targets
from convoy.plan.layers import LayerPlan
from convoy.plan.network import NetworkPlan
from convoy.plan.operations import Flatten, GlobalPool
from convoy.plan.schedules import Schedule
from convoy.plan.stages import StagePlan
from convoy.plan.steps import Shape


@dataclass(frozen=True)
class Borders:
    """What comes in and goes out for one micro-batch, and the device on which it lies.

    Gradients come back over a border unless nothing before it is trained.
    """

    incoming: tuple[Size, ...]
    outgoing: tuple[Size, ...]
    device: torch.device
    answers: bool  # the stage before gets gradients; the first stage has nobody to answer
    is_answered: bool  # and so do we, or at the end the loss is ours


def borders_of(
    network: NetworkPlan, stage: StagePlan, samples: int, device: torch.device, frozen: int = 0
) -> Borders:
    """The borders of a stage for so many samples at a time; the first layers may be frozen."""
    before, after = network.layers[: stage.first], network.layers[: stage.last + 1]
    return Borders(
        _sizes(network.costs[stage.first].bundle_in, before, samples),
        _sizes(network.costs[stage.last].bundle_out, after, samples),
        device,
        answers=stage.first > frozen,
        is_answered=stage.last >= frozen,
    )


def _sizes(
    bundle: tuple[Shape, ...], layers: Sequence[LayerPlan], samples: int
) -> tuple[Size, ...]:
    """A shape of one pixel is a vector only after the pooling over the whole image."""
    if any(isinstance(layer.operation, GlobalPool | Flatten) for layer in layers):
        return tuple((samples, shape.channels) for shape in bundle)
    return tuple((samples, shape.channels, shape.size, shape.size) for shape in bundle)


def links_of(borders: Borders, group: Group, stage: int) -> tuple[Link, Link]:
    """To the stage before, and to the one after."""
    before, after = roads_of(group, stage)
    return (
        Link(borders.incoming, borders.device, before),
        Link(borders.outgoing, borders.device, after),
    )


class Stage(PipelineStage):
    """One stage of a line of processes: stage `rank`, and `rank + turn × processes` where a process
    holds several and the line goes around more than once.
    """

    def __init__(
        self,
        layers: nn.Module,
        borders: Borders,
        group: Group,
        schedule: Schedule,
        micro_batches: int,
        turn: int = 0,
    ) -> None:
        processes = dist.get_world_size(group)
        stage, stages = dist.get_rank(group) + turn * processes, schedule.stages_on(processes)
        super().__init__(
            layers,
            stage,
            stages,
            borders.device,
            input_args=_described(borders.incoming, borders.answers),
            output_args=_described(borders.outgoing, borders.is_answered),
            group=group,
        )
        self.has_backward = True
        self.schedule, self.micro_batches = schedule, micro_batches
        self.answers, self.rests = borders.answers, not borders.is_answered
        self.back, self.onward = links_of(borders, group, stage)
        self.peak_stash = schedule.peak_stash(stage, stages, micro_batches)
        # The stage before has sent so many, at most, since the last gradient it took from us.
        self._on_credit = schedule.unanswered(max(0, stage - 1), stages, micro_batches)
        self.stash_seen = 0  # the most activation sets between forward and backward so far
        self.received_seen = 0  # the most incoming bundles so far, those on their way included
        self.labels: Targets | None = None
        self._feed: Iterator[MicroBatch] = iter(())
        self._after_backward: Callable[[], None] = _do_nothing
        self._inputs: dict[int, Moving] = {}
        self._gradients: dict[int, Moving] = {}
        self._strides: dict[int, dict[int, Strides]] = {}  # of the gradients we send back
        self._halves = Halves(layers)
        self._tapes: dict[int, Tape] = {}  # of split backward passes that have not begun
        self._going_back = 0  # the micro-batch of the backward pass that runs
        self._sent_onward: dict[int, Moving] = {}
        self._sent_back: dict[int, Moving] = {}

    def begin(self, feed: Iterator[MicroBatch], after_backward: Callable[[], None]) -> None:
        """An update: micro-batches are taken from the feed one at a time, as forwards come."""
        self.submod.train()
        self.clear_runtime_states()
        self._feed = feed
        self._after_backward = after_backward

    def finish(self) -> None:
        """What was sent last has arrived, so memory may be used again."""
        self._let_go(self.micro_batches)

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> Any:
        images, self.labels = next(self._feed)
        given = (images,) if self.is_first else args
        with self._taping(fwd_chunk_id):
            made = super().forward_one_chunk(fwd_chunk_id, given, kwargs, save_forward_output)
        self._check_stash()
        if not self.is_first:
            # The stage before has gone backward this often, or it could not have sent this one.
            self._let_go(fwd_chunk_id - self._on_credit + 1)
        return made

    def _taping(self, micro: int) -> AbstractContextManager[None]:
        """Who has nobody to answer, as the first stage, makes its backward passes whole."""
        if not self.answers or not self.schedule.splits_backward:
            return nullcontext()
        self._tapes[micro] = Tape()
        return self._halves.noting(self._tapes[micro])

    @property
    def stash(self) -> int:
        """Activation sets held now: whole, or their weight half still to be done."""
        return len(self.fwd_cache) + len(self.backward_state)

    def _check_stash(self) -> None:
        held = self.stash
        self.stash_seen = max(self.stash_seen, held)
        if held > self.peak_stash:
            raise ConvoyError(
                f"stage {self.stage_index} of {self.num_stages} holds {held} activation sets, but "
                f"{self.schedule.name} with {self.micro_batches} micro-batches promises at most "
                f"{self.peak_stash}: the order of work is broken; use another --pipeline-schedule"
            )

    def _let_go(self, end: int) -> None:
        """Forget the gradients sent back for the micro-batches before `end`."""
        for micro in [one for one in self._sent_back if one < end]:
            self._sent_back.pop(micro).wait()

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        self._going_back = bwd_chunk_id
        is_whole = full_backward or not self.answers
        if self.rests:
            del self.fwd_cache[bwd_chunk_id]
        else:
            super().backward_one_chunk(bwd_chunk_id, loss, is_whole, last_backward)
        if loss is not None:
            loss.detach_()  # the runtime holds it to the end, and with its graph all that came in
        if not self.answers:
            self.bwd_cache.pop(bwd_chunk_id, None)
        else:
            # Before our own sums, so that the stage before need not wait for them.
            self._sent_back[bwd_chunk_id] = self.back.send(self._gradients_of(bwd_chunk_id))
        if not self.is_last:
            # Its gradient is here, so it arrived; where none comes, it is waited for.
            self._sent_onward.pop(bwd_chunk_id).wait()
        if is_whole:
            self._after_backward()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        if not self.answers:
            return  # done together with the other half
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        del self.dw_runner[bwd_chunk_id]
        self._after_backward()

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[Tensor | None, ...], Any]:
        """Where torch takes a backward pass apart, we do it our way."""
        match backward_type:
            case "input":
                tape = self._tapes.pop(self._going_back)
                return self._first_half(bwd_kwargs, tape), tape
            case "weight":
                self._halves.second(bwd_kwargs["param_groups"])
                return (), None
            case _:
                return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)

    def _first_half(self, given: dict[str, Any], tape: Tape) -> tuple[Tensor | None, ...]:
        gradients = self._halves.first(
            given["stage_output"], given["output_grads"], given["input_values"], tape
        )
        # torch keeps these for the second half, which needs nothing but the tape.
        given.update(stage_output=None, output_grads=None, input_values=None)
        return gradients

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Each of these four starts its transfer itself: nothing is left to the runtime."""
        self._inputs[fwd_chunk_id] = self.back.receive()
        received = len(self._inputs) + self.stash
        self.received_seen = max(self.received_seen, received)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if not self.rests:
            self._gradients[bwd_chunk_id] = self.onward.receive()
        return []

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._sent_onward[fwd_chunk_id] = self.onward.send(self.fwd_cache[fwd_chunk_id][0])
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Sent with the backward pass itself."""
        del bwd_chunk_id
        return []

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Bundle:
        bundle = self._inputs.pop(fwd_chunk_id).wait()
        if not self.answers:
            return bundle
        strides = self._strides[fwd_chunk_id] = {}
        for index, tensor in enumerate(bundle):
            _note_strides(tensor.requires_grad_(), index, strides)
        return bundle

    def _gradients_of(self, micro: int) -> list[Tensor]:
        """As the layers made them: torch has laid them as the input lies."""
        strides = self._strides.pop(micro)
        gradients = self.bwd_cache.pop(micro)
        made = [one for one in gradients if one is not None]
        assert len(made) == len(gradients), "the loss does not depend on something received"
        return [laid(gradient, strides[index]) for index, gradient in enumerate(made)]

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Bundle:
        return self._gradients.pop(bwd_chunk_id).wait()

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        """The runtime reads the neighbor's name from the first entry; no buffer is kept."""
        del num_microbatches
        super()._setup_forward_recv_info(1, has_backward)
        for info in self.args_recv_info[0]:
            info.buffer = None

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        self.chunks = num_microbatches


def _described(sizes: tuple[Size, ...], has_gradient: bool) -> Bundle:
    return tuple(torch.empty(size, device="meta", requires_grad=has_gradient) for size in sizes)


def _note_strides(tensor: Tensor, index: int, strides: dict[int, Strides]) -> None:
    """Only the strides: who holds the gradient itself makes torch copy it."""

    def note(gradient: Tensor) -> None:
        strides[index] = gradient.stride()

    tensor.register_hook(note)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _do_nothing() -> None:
    """Outside of an update."""
