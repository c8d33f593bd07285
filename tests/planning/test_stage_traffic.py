"""The peak memory of a stage: activations and transfers in flight."""

from dataclasses import replace

import pytest

from convoy.planning.activations import ActivationFootprint
from convoy.planning.memory import peak_activations, stage_traffic
from convoy.planning.schedules import SCHEDULES
from convoy.planning.timetable import prefetched_inputs, timed_actions

FOOTPRINT = ActivationFootprint(
    input_elements=3,
    output_elements=7,
    stashed=100,
    peak_forward=150,
    peak_backward=190,
    weight_gradient_inputs=20,
)


def peak_elements(schedule: str, stage: int, stages: int, micro_batches: int = 4) -> int:
    return peak_activations(
        FOOTPRINT, stage_traffic(SCHEDULES[schedule], stage, stages, micro_batches)
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_single_stage_needs_one_pass(schedule: str):
    assert peak_elements(schedule, 0, 1) == 190


def test_stashed_sets_add_to_the_peak():
    """With the prefetched gradient of the next backward pass."""
    assert peak_elements("interleaved", 0, 2) == 100 + 190
    assert peak_elements("grouped", 0, 2) == 3 * 100 + 190 + 7


def test_the_last_stage_receives_the_next_input_and_has_sent_a_gradient():
    assert peak_elements("interleaved", 1, 2) == 190 + 3 + 3


def test_no_input_is_prefetched_for_a_micro_batch_still_being_computed():
    footprint = replace(FOOTPRINT, peak_forward=1000)

    assert peak_activations(footprint, stage_traffic(SCHEDULES["sequential"], 0, 2, 4)) == 1000


def test_nothing_is_freed_between_the_halves_of_a_split_backward():
    # One set waiting for its weight half, one in its backward pass, and a sent gradient.
    assert peak_elements("zero-bubble", 1, 2) == (100 + 20) + (190 + 20) + 3


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", range(1, 7))
def test_the_traced_part_of_an_update_has_its_full_peak(name: str, stages: int):
    schedule, micro_batches = SCHEDULES[name], 12 * stages
    for stage in range(stages):
        traced = stage_traffic(schedule, stage, stages, micro_batches)
        orders = timed_actions(schedule, stages, micro_batches)
        row = [timed for order in orders for timed in order if timed.stage == stage]
        actions = [timed.action for timed in row]
        full = replace(traced, actions=actions, prefetched=prefetched_inputs(orders, row))

        assert len(traced.actions) <= len(full.actions)
        assert peak_activations(FOOTPRINT, traced) == peak_activations(FOOTPRINT, full)
