"""Bytes of each stage: weights, gradients, optimizer state, and activations kept for backward."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from convoy.plan.batch import BatchPlan
from convoy.plan.layers import LayerCost, Shape
from convoy.plan.schedules import Schedule

BYTES = 4  # of one number: 32-bit is the only precision there is yet


@dataclass(frozen=True)
class StageMemory:
    """The largest parts of what a stage's device holds. Temporary buffers of torch come on top."""

    weights: int
    gradients: int  # the partial sums of the gradient tree
    optimizer_state: int
    stash_sets: int  # micro-batches between their forward and their backward
    stash: int  # their activations
    link: int  # what one micro-batch sends to the next stage, if there is one

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer_state + self.stash


def stage_memory(
    layers: Sequence[LayerCost],
    batch: BatchPlan,
    schedule: Schedule,
    place: tuple[int, int],
    momentum: bool,
) -> StageMemory:
    """The memory of stage `place[0]` of `place[1]`, which holds these layers."""
    micro_batches = batch.gradient_accumulation
    weights = BYTES * sum(layer.parameters for layer in layers)
    is_last = place[0] == place[1] - 1
    sets = schedule.peak_stash(place[0], place[1], micro_batches)
    return StageMemory(
        weights=weights,
        gradients=weights * partial_sums(micro_batches),
        optimizer_state=weights if momentum else 0,
        stash_sets=sets,
        stash=BYTES * batch.micro_batch_size * _kept(layers) * sets,
        link=0 if is_last else BYTES * batch.micro_batch_size * _elements(layers[-1].bundle_out),
    )


def _kept(layers: Sequence[LayerCost]) -> int:
    """Elements of one sample that a stage keeps: what it receives, and what its layers keep."""
    received = layers[0].bundle_in
    # What came in is the sender's: a first layer may not write over it and makes a new tensor.
    anew = received[0].elements if layers[0].in_place else 0
    return _elements(received) + anew + sum(layer.kept for layer in layers)


def _elements(bundle: Iterable[Shape]) -> int:
    return sum(shape.elements for shape in bundle)


def partial_sums(micro_batches: int) -> int:
    """How many gradients the pairwise tree holds at most: one a level."""
    return micro_batches.bit_length()
