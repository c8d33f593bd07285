"""Bytes of each stage: weights, gradients, optimizer state, and what its micro-batches hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from convoy.config.sections.machine import MemoryConfig
from convoy.plan.activations import Passage, passage
from convoy.plan.batch import BatchPlan
from convoy.plan.layers import LayerCost, LayerPlan
from convoy.plan.precision import WHOLE, NumberBytes
from convoy.plan.recompute import RecomputePlan
from convoy.plan.schedules import Schedule
from convoy.plan.stages import StagePlan
from convoy.plan.traffic import Place, events_of, most_held


@dataclass(frozen=True)
class StageMemory:
    """What one process of a stage holds at most. Buffers inside torch's kernels come on top."""

    weights: int
    gradients: int  # one in the weights, and the partial sums of the tree
    optimizer_state: int  # on the device
    offloaded: int  # optimizer state that lies elsewhere between updates
    stash_sets: int  # micro-batches between their forward and their backward
    stash: int  # what they keep meanwhile
    activations: int  # the stash, the pass that is being made, and what is on its way
    link: int  # what one micro-batch sends to the next stage, if there is one

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer_state + self.activations


@dataclass(frozen=True)
class StagedNetwork:
    """A network cut into stages, with the order of their work and what they compute again."""

    layers: Sequence[LayerPlan]
    costs: Sequence[LayerCost]
    stages: tuple[StagePlan, ...]
    schedule: Schedule
    recompute: RecomputePlan
    trains: Sequence[int]  # parameters of each layer that change

    def trained(self, stage: StagePlan) -> int:
        """Parameters that have gradients and state."""
        return sum(self.trains[stage.first : stage.last + 1])

    def parameters(self, stage: StagePlan) -> int:
        return sum(cost.parameters for cost in self.costs[stage.first : stage.last + 1])

    def passage(self, stage: StagePlan) -> Passage:
        part = slice(stage.first, stage.last + 1)
        starts = self.recompute.starts(stage.names)
        return passage(self.layers[part], self.costs[part], starts, is_first=stage.stage == 0)


def plan_memory(
    network: StagedNetwork, batch: BatchPlan, wish: MemoryConfig, numbers: NumberBytes
) -> tuple[StageMemory, ...]:
    """The memory of each stage; of its replicas, the one that holds most."""
    schedule, stages = network.schedule, len(network.stages)
    events = events_of(schedule, stages, _enough(schedule, stages, batch.gradient_accumulation))
    sums, sample = most_sums(batch), numbers.activation * batch.micro_batch_size
    shards = batch.replicas if wish.enable_optimizer_rts else 1
    made = []
    for stage in network.stages:
        trained, held = network.trained(stage), network.passage(stage)
        owned = -(-trained // shards)
        state = numbers.state * owned
        place = _place(schedule, stage.stage, stages, batch.gradient_accumulation)
        sets = schedule.peak_stash(stage.stage, stages, batch.gradient_accumulation)
        made.append(
            StageMemory(
                weights=WHOLE * network.parameters(stage) + numbers.average * owned,
                gradients=(WHOLE + sums * numbers.sum) * trained,
                optimizer_state=0 if wish.offload_optimizer else state,
                offloaded=state if wish.offload_optimizer else 0,
                stash_sets=sets,
                stash=sample * sets * held.between,
                activations=sample * most_held(held, events[stage.stage], place),
                link=sample * held.goes_out if stage.stage < stages - 1 else 0,
            )
        )
    return tuple(made)


def _place(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> Place:
    before = max(0, stage - 1)  # the first stage sends nothing back
    return Place(stage, stages, schedule.peak_stash(before, stages, micro_batches))


def _enough(schedule: Schedule, stages: int, micro_batches: int) -> int:
    """Micro-batches after which nothing new happens: the line has filled and begun to repeat."""
    return min(micro_batches, 3 * schedule.in_flight(stages) + 2)


def most_sums(batch: BatchPlan) -> int:
    """Vectors of the gradient tree on the replica that needs most of them."""
    count = batch.gradient_accumulation
    # Only where a block begins between two multiples of a power of two above its length matters.
    span = 1 << count.bit_length()
    different = min(batch.replicas, span // gcd(count, span))
    return max(tree_vectors(count, replica * count) for replica in range(different))


def tree_vectors(micro_batches: int, first: int = 0) -> int:
    """Sums that wait at most while a block of leaves is added up, from the leaf `first` on.

    Up to the most even number in the block the waiting sums grow, behind it they shrink: as many
    as there are ones in the two distances.
    """
    most, end = 0, first + micro_batches
    while end > first:
        middle = _most_even(first, end)
        behind = (end - middle + 1).bit_length() - 1  # the most ones of a number up to that
        most = max(most, (middle - first).bit_count() + behind)
        end = middle - 1
    return most


def _most_even(first: int, last: int) -> int:
    """The number of a range that can be halved most often; 0 is the most even of all."""
    for level in range(last.bit_length(), -1, -1):
        number = last >> level << level
        if number >= first:
            return number
    raise AssertionError("level 0 is the last number itself")
