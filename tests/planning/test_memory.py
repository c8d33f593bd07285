"""The memory of a stage against manual counts, and its gradients against the gradient tree."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweeps import sweep

from convoy.config.schema import build_config
from convoy.numerics.gradients import node_spans
from convoy.planning.memory import StageMemory, gradient_tree_vectors, peak_tree_vectors
from convoy.planning.plan import plan_run
from convoy.planning.schedules import SCHEDULES
from convoy.planning.topology import BatchPlan


def memory(**options: Any) -> tuple[StageMemory, ...]:
    values = {"model": "resnet8", "micro_batch_size": 2, "norm_type": "batch", **options}
    return plan_run(build_config(values)).memory


def test_stage_memory_has_weights_gradients_momentum_and_activations():
    first, last = memory(pipeline_splits=("fc",), gradient_accumulation=4)
    head = 65 * 10

    assert last.weights == 4 * head
    assert last.gradients == (1 + 2) * last.weights  # one in the weights, two partial sums
    assert last.optimizer_state == last.weights
    assert first.weights + last.weights == 4 * 75_290
    assert last.total == 5 * last.weights + last.activations


def test_the_activations_of_the_head_match_a_manual_count():
    _, last = memory(pipeline_splits=("fc",), gradient_accumulation=4)
    inputs, outputs = 64, 10
    stash = inputs + outputs
    backward = stash + outputs + inputs  # with the gradients of both
    in_transfer = inputs + inputs  # the next input and a gradient

    assert last.stash == 4 * 2 * stash
    assert last.activations == 4 * 2 * (backward + in_transfer)


def test_all_stages_but_the_last_have_a_link():
    first, last = memory(pipeline_splits=("layer2/0/conv2",), gradient_accumulation=4)

    assert first.link == 4 * 2 * (32 * 16 * 16 + 16 * 32 * 32)  # both branches of the block
    assert last.link == 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_stage_stashes_as_many_sets_as_its_schedule(name: str):
    stages = memory(shards=3, gradient_accumulation=12, pipeline_schedule=name)

    assert [item.stash_sets for item in stages] == [
        SCHEDULES[name].peak_stash(stage, 3, 12) for stage in range(3)
    ]
    assert all(item.activations > item.stash for item in stages)


def test_without_momentum_there_is_no_optimizer_state():
    (stage,) = memory(momentum=0.0)

    assert (stage.optimizer_state, stage.offloaded) == (0, 0)


def test_optimizer_state_is_sharded_over_replicas_and_rounded_up():
    (stage,) = memory(replicas=4, enable_optimizer_rts=True)

    assert stage.optimizer_state == 4 * -(-75_290 // 4)


def test_offloaded_state_uses_no_device_memory():
    (in_memory,), (offloaded,) = memory(), memory(offload_optimizer=True)

    assert (offloaded.optimizer_state, offloaded.offloaded) == (0, in_memory.optimizer_state)
    assert offloaded.total == in_memory.total - in_memory.optimizer_state


def test_offloaded_sharded_state_is_one_shard():
    (stage,) = memory(replicas=2, enable_optimizer_rts=True, offload_optimizer=True)

    assert (stage.optimizer_state, stage.offloaded) == (0, 2 * 75_290)


@pytest.mark.parametrize(
    ("kind", "size"), [("auto", 4), ("float64", 8), ("float32", 4), ("bfloat16", 2)]
)
def test_accumulators_have_a_separate_dtype(kind: str, size: int):
    (stage,) = memory(accumulator_dtype=kind, gradient_accumulation=8)

    assert stage.gradients == (4 + 3 * size) * 75_290


def test_recomputation_saves_most_of_the_stash():
    stored = memory(model="resnet20", enable_recompute=False)[0]
    recomputed = memory(model="resnet20", enable_recompute=True)[0]
    at_blocks = memory(
        model="resnet20", enable_recompute=True, recompute_checkpoints=(r"layer\d/\d",)
    )[0]

    assert recomputed.stash < at_blocks.stash < 0.3 * stored.stash
    assert at_blocks.activations < 0.4 * stored.activations
    # One segment: everything is recomputed at once.
    assert recomputed.activations <= stored.activations


@pytest.mark.parametrize(
    ("micro_batches", "sums"), [(1, 1), (2, 1), (3, 2), (4, 2), (7, 3), (8, 3), (1024, 10)]
)
def test_the_tree_has_one_partial_sum_per_level(micro_batches: int, sums: int):
    assert gradient_tree_vectors(micro_batches) == sums


def vectors_of_tree(first: int, count: int) -> int:
    return max(len(node_spans(first, leaves)) for leaves in range(1, count + 1))


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 300), st.integers(1, 70))
def test_the_planned_tree_vectors_match_the_gradient_tree(first: int, count: int):
    assert gradient_tree_vectors(count, first) == vectors_of_tree(first, count)


@sweep("count", [*range(1, 20), 31, 32, 48, 63])
@sweep("replicas", [1, 2, 3, 5, 8, 70])
def test_the_replica_with_most_partial_sums_counts(count: int, replicas: int):
    peak = max(vectors_of_tree(replica * count, count) for replica in range(replicas))

    assert peak_tree_vectors(BatchPlan(1, count, replicas)) == peak


def test_an_unaligned_block_may_need_twice_as_many_vectors():
    assert gradient_tree_vectors(6, first=0) == 2
    assert gradient_tree_vectors(6, first=1) == 4
