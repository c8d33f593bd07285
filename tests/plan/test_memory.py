"""The memory of a stage: by hand, and against what autograd saves behind every possible cut."""

import pytest
from networks import bottleneck_layers, images_and_labels, slice_of, small_layers
from saved import saved_bytes, small_change
from torch import Tensor

from convoy.models.build import build_layers
from convoy.parallel.slice import Slice
from convoy.plan.batch import BatchPlan
from convoy.plan.layers import LayerCost, LayerPlan, Shape, layer_costs
from convoy.plan.memory import StageMemory, partial_sums, stage_memory
from convoy.plan.schedules import SCHEDULES

INTERLEAVED = SCHEDULES["interleaved"]

# Two layers of a stage that receives a bundle of 10 + 6 elements and sends one of 8.
TWO_LAYERS = (
    LayerCost("a", (Shape(10, 1), Shape(6, 1)), (Shape(5, 1), Shape(6, 1)), 7, 0, 5, False),
    LayerCost("b", (Shape(5, 1), Shape(6, 1)), (Shape(8, 1),), 4, 0, 8, False),
)


def test_a_stage_holds_weights_partial_sums_momentum_and_stash():
    batch = BatchPlan(micro_batch_size=3, gradient_accumulation=4, replicas=2)
    memory = stage_memory(TWO_LAYERS, batch, INTERLEAVED, place=(0, 2), momentum=True)
    weights, kept = 4 * 11, 4 * 3 * (10 + 6 + 5 + 8)

    assert memory == StageMemory(
        weights=weights,
        gradients=3 * weights,
        optimizer_state=weights,
        stash_sets=2,
        stash=2 * kept,
        link=4 * 3 * 8,
    )
    assert memory.total == 5 * weights + 2 * kept


def test_without_momentum_there_is_no_optimizer_state():
    memory = stage_memory(TWO_LAYERS, BatchPlan(3, 4, 1), INTERLEAVED, (0, 2), momentum=False)

    assert memory.optimizer_state == 0


def test_the_last_stage_sends_nothing_on():
    memory = stage_memory(TWO_LAYERS, BatchPlan(3, 4, 1), INTERLEAVED, (1, 2), momentum=True)

    assert (memory.link, memory.stash_sets) == (0, 1)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stage", range(3))
def test_a_stage_keeps_as_many_sets_as_its_schedule(name: str, stage: int):
    schedule, batch = SCHEDULES[name], BatchPlan(1, 12, 1)
    memory = stage_memory(TWO_LAYERS, batch, schedule, (stage, 3), momentum=True)

    assert memory.stash_sets == schedule.peak_stash(stage, 3, 12)
    assert memory.stash == memory.stash_sets * 4 * (10 + 6 + 5 + 8)


@pytest.mark.parametrize(
    ("micro_batches", "sums"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (1024, 11)]
)
def test_the_tree_holds_one_sum_a_level(micro_batches: int, sums: int):
    assert partial_sums(micro_batches) == sums


@pytest.mark.parametrize("layers", [small_layers(), small_layers("group"), bottleneck_layers()])
def test_behind_every_cut_the_stash_is_what_came_in_and_what_autograd_saves(
    layers: tuple[LayerPlan, ...],
):
    images, labels = images_and_labels(2, 16)
    costs = layer_costs(layers, Shape(3, 16))
    modules = build_layers(layers, seed=0)
    for start in range(1, len(layers)):
        place = (1, 2)
        planned = stage_memory(costs[start:], BatchPlan(2, 2, 1), INTERLEAVED, place, True).stash
        received = _received(layers[:start], images)
        saved = saved_bytes(Slice(layers[start:], modules), received, labels)

        assert saved == planned + small_change(layers[start:], samples=2), layers[start].name


def _received(before: tuple[LayerPlan, ...], images: Tensor) -> tuple[Tensor, ...]:
    """What the layers before the cut send, as tensors of the receiver's own."""
    bundle: tuple[Tensor, ...] = slice_of(before)(images)
    return tuple(tensor.detach().clone().requires_grad_() for tensor in bundle)
