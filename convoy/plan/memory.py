"""Bytes of each stage: weights, gradients, optimizer state, and activations kept for backward."""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.plan.batch import BatchPlan
from convoy.plan.layers import LayerCost
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
    link: int  # what one micro-batch sends to the next stage

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
    sets = schedule.peak_stash(place[0], place[1], micro_batches)
    kept = sum(layer.kept for layer in layers) + sum(s.elements for s in layers[0].bundle_in)
    return StageMemory(
        weights=weights,
        gradients=weights * partial_sums(micro_batches),
        optimizer_state=weights if momentum else 0,
        stash_sets=sets,
        stash=BYTES * batch.micro_batch_size * kept * sets,
        link=BYTES * batch.micro_batch_size * sum(s.elements for s in layers[-1].bundle_out),
    )


def partial_sums(micro_batches: int) -> int:
    """How many gradients the pairwise tree holds at most: one a level."""
    return micro_batches.bit_length()
