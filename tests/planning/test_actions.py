"""Schedules complete with their planned stash and length; wrong orders are detected."""

import re
from itertools import combinations

import pytest
from support.schedule_simulation import Costs, simulate
from support.sweeps import sweep

from convoy.planning.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    start_times,
)
from convoy.planning.schedules import SCHEDULES, Schedule, make_schedule

LAYOUTS = [(name, stages) for name in SCHEDULES for stages in range(1, 7)]


PASSES = {item.symbol: item for item in (Forward, Backward, BackwardInput, BackwardWeight)}


def orders(schedule: Schedule, stages: int, micro_batches: int) -> list[list[Action]]:
    return schedule.orders(stages, micro_batches)


def parse_actions(line: str) -> list[Action]:
    """`F0 B0`, or with stages `2F0 2B0`."""
    return [parse_action(*re.fullmatch(r"(\d*)(\D)(\d+)", word).groups()) for word in line.split()]


def parse_action(stage: str, letter: str, micro: str) -> Action:
    return PASSES[letter](int(micro), int(stage) if stage else None)


@sweep(("name", "stages"), LAYOUTS)
def test_every_schedule_completes_with_its_planned_peak_stash(name: str, stages: int):
    for micro_batches in range(1, 25):
        schedule = SCHEDULES[name]
        result = simulate(orders(schedule, stages, micro_batches))

        assert not result.deadlocked
        assert result.stash == tuple(
            schedule.peak_stash(stage, stages, micro_batches) for stage in range(stages)
        )


@sweep(("name", "stages"), LAYOUTS)
def test_with_equal_costs_no_schedule_is_slower_than_its_timetable(name: str, stages: int):
    for micro_batches in range(1, 25):
        schedule = SCHEDULES[name]
        result = simulate(orders(schedule, stages, micro_batches))
        column = 2 if name == "grouped" and stages > 1 else 1

        assert result.seconds <= column * schedule.num_columns(stages, micro_batches)
        assert all(0 <= idle < 1 for idle in result.idle)


@sweep("stages", range(1, 7))
@pytest.mark.parametrize("name", ["interleaved", "sequential"])
def test_with_equal_costs_time_and_idle_fraction_match_the_timetable(name: str, stages: int):
    schedule = SCHEDULES[name]
    for micro_batches in range(stages, 25, stages):
        result = simulate(orders(schedule, stages, micro_batches))

        assert result.seconds == schedule.num_columns(stages, micro_batches)
        assert result.idle == pytest.approx(
            [schedule.bubble_fraction(stages, micro_batches)] * stages
        )


def test_sequential_takes_the_sum_of_all_costs():
    costs = Costs(forward=(1.0, 2.0, 4.0), backward=(3.0, 5.0, 6.0))
    result = simulate(orders(SCHEDULES["sequential"], 3, 5), costs)

    assert result.seconds == 5 * (1 + 2 + 4 + 3 + 5 + 6)


def test_the_slowest_stage_decides_and_is_the_least_idle():
    costs = Costs(forward=(1.0, 3.0, 1.0), backward=(2.0, 6.0, 2.0))
    result = simulate(orders(SCHEDULES["interleaved"], 3, 24), costs)

    assert result.seconds >= 24 * 9
    assert min(result.idle) == result.idle[1]
    assert result.idle[1] == pytest.approx(1 - 24 * 9 / result.seconds)


def test_a_transfer_delays_the_neighbor():
    costs = Costs(forward=(1.0, 1.0), backward=(1.0, 1.0), transfer=0.25)
    result = simulate(orders(SCHEDULES["interleaved"], 2, 1), costs)

    assert result.seconds == 4.5


def test_a_longer_lead_hides_slow_transfers():
    costs = Costs(forward=(1.0,) * 4, backward=(1.0,) * 4, transfer=0.5)
    grouped = simulate(orders(SCHEDULES["grouped"], 4, 24), costs)
    interleaved = simulate(orders(SCHEDULES["interleaved"], 4, 24), costs)

    assert grouped.seconds < interleaved.seconds


def test_a_deadlock_names_the_stages_and_what_they_wait_for():
    result = simulate([parse_actions("F0 B0 F1 B1"), parse_actions("F0 F1 B0 B1")])

    assert result.deadlocked
    assert [str(stuck) for stuck in result.stuck] == [
        "stage 0 cannot run B0: it waits for B0 of stage 1",
        "stage 1 cannot run F1: it waits for F1 of stage 0",
    ]
    assert result.seconds == 2


def test_a_link_delivers_in_the_order_of_sending():
    result = simulate([parse_actions("F0 F1 B0 B1"), parse_actions("F1 B1 F0 B0")])

    assert [str(stuck) for stuck in result.stuck] == [
        "stage 0 cannot run B0: it waits for B0 of stage 1",
        "stage 1 cannot run F1: it waits for F1 of stage 0, which sent micro-batch 0 first",
    ]


def test_a_backward_before_its_forward_is_caught():
    result = simulate([parse_actions("B0 F0")])

    assert [str(stuck) for stuck in result.stuck] == [
        "stage 0 cannot run B0: it waits for its own F0"
    ]


def test_a_weight_half_before_its_input_half_is_caught():
    result = simulate([parse_actions("F0 W0 I0")])

    assert [str(stuck) for stuck in result.stuck] == [
        "stage 0 cannot run W0: it waits for its own I0"
    ]


def test_a_second_input_half_is_caught():
    result = simulate([parse_actions("F0 I0 I0 W0")])

    assert [str(stuck) for stuck in result.stuck] == [
        "stage 0 cannot run I0: it waits for its own F0"
    ]


def test_the_previous_stage_waits_only_for_the_input_half():
    costs = Costs(forward=(1.0, 1.0), backward=(4.0, 4.0), weight_share=0.75)
    result = simulate([parse_actions("F0 I0 W0"), parse_actions("F0 I0 W0")], costs)

    assert result.starts == ((0, 3, 4), (1, 2, 3))
    assert result.seconds == 7


def test_a_split_backward_costs_as_much_as_a_full_one():
    costs = Costs(forward=(1.0,), backward=(3.0,), weight_share=0.25)

    assert (
        simulate([parse_actions("F0 I0 W0")], costs).seconds
        == simulate([parse_actions("F0 B0")], costs).seconds
    )


def test_a_stash_is_retained_until_the_weight_half():
    result = simulate([parse_actions("F0 I0 F1 I1 F2 I2 W0 W1 W2")])

    assert result.stash == result.process_stash == (3,)


def test_a_deadlock_of_several_stages_in_a_process_names_the_stage():
    correct = orders(make_schedule("looped", 2), 4, 2)
    result = simulate([parse_actions("0F0 2F0 0F1 2F1 2B0 2B1 0B0 0B1"), correct[1]])

    assert [str(stuck) for stuck in result.stuck] == []

    result = simulate([parse_actions("2F0 0F0 0F1 2F1 2B0 2B1 0B0 0B1"), correct[1]])

    assert [str(stuck) for stuck in result.stuck] == [
        "stage 2 cannot run F0: it waits for F0 of stage 1",
        "stage 1 cannot run F0: it waits for F0 of stage 0",
    ]


def test_the_stages_of_a_process_stash_less_than_the_sum_of_their_peaks():
    result = simulate(orders(make_schedule("looped", 2), 4, 4))

    assert result.stash == (4, 3, 2, 1)
    assert result.process_stash == (5, 3)


def test_a_deadlock_does_not_name_finished_stages():
    result = simulate([parse_actions("F0"), parse_actions("F0 F1")])

    assert [stuck.stage for stuck in result.stuck] == [1]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3])
def test_two_swapped_passes_are_caught_on_every_stage(name: str, stages: int):
    correct = orders(SCHEDULES[name], stages, 2 * stages)
    for stage, actions in enumerate(correct):
        for first, second in combinations(range(len(actions)), 2):
            if isinstance(actions[first], BackwardWeight):
                continue  # does not affect other stages
            if type(actions[first]) is type(actions[second]):
                swapped = list(actions)
                swapped[first], swapped[second] = swapped[second], swapped[first]
                result = simulate([*correct[:stage], swapped, *correct[stage + 1 :]])

                assert result.deadlocked


@sweep("stages", range(3, 7))
def test_a_first_stage_that_does_not_run_ahead_is_caught(stages: int):
    correct = orders(SCHEDULES["interleaved"], stages, 2 * stages)
    result = simulate([correct[-1], *correct[1:]])

    assert [stuck.stage for stuck in result.stuck] == list(range(stages))
    assert str(result.stuck[0]) == "stage 0 cannot run B0: it waits for B0 of stage 1"


@sweep(("name", "stages"), LAYOUTS)
def test_start_times_match_the_simulation(name: str, stages: int):
    costs = Costs(tuple(1.0 + stage for stage in range(stages)), (3.0,) * stages)
    for micro_batches in range(1, 13):
        actions = orders(SCHEDULES[name], stages, micro_batches)
        simulated = simulate(actions, costs)

        assert start_times(actions, costs.of) == [list(row) for row in simulated.starts]
        assert start_times(actions) == [list(row) for row in simulate(actions).starts]


def test_a_deadlock_has_no_start_times():
    with pytest.raises(AssertionError, match="waits for another"):
        start_times([parse_actions("B0 F0"), parse_actions("F0 B0")])
