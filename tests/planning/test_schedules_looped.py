"""The looped schedule: its order, and its length and stash for all small sizes."""

import pytest
from support.schedule_simulation import simulate
from support.sweeps import sweep

from convoy.errors import ConfigError
from convoy.planning.actions import Backward, Forward
from convoy.planning.schedules import SCHEDULES, make_schedule

SIZES = [
    (processes, rounds, count)
    for processes in range(2, 6)
    for rounds in range(2, 5)
    for count in range(processes, 25, processes)
]


def error_for(stages: int, count: int) -> str:
    with pytest.raises(ConfigError) as refused:
        make_schedule("looped", 3).check_micro_batches(stages, count)
    return str(refused.value)


def test_two_looped_processes_alternate_every_two_micro_batches():
    rows = [" ".join(map(str, row)) for row in make_schedule("looped", 2).orders(4, 4)]

    assert rows == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


@sweep(("processes", "rounds", "count"), SIZES)
def test_each_micro_batch_passes_every_stage_once_in_each_direction(
    processes: int, rounds: int, count: int
):
    schedule, stages = make_schedule("looped", rounds), processes * rounds
    rows = schedule.orders(stages, count)

    assert len(rows) == processes
    for process, row in enumerate(rows):
        assert {item.stage for item in row} == set(range(process, stages, processes))
    for stage in range(stages):
        actions = schedule.actions(stage, stages, count)

        assert actions == [item for item in rows[stage % processes] if item.stage == stage]
        for kind in (Forward, Backward):
            assert [item.micro for item in actions if isinstance(item, kind)] == list(range(count))


@sweep(("processes", "rounds", "count"), SIZES)
def test_the_schedule_finishes_with_the_planned_stash(processes: int, rounds: int, count: int):
    schedule, stages = make_schedule("looped", rounds), processes * rounds
    result = simulate(schedule.orders(stages, count))

    assert not result.deadlocked
    assert result.stash == tuple(schedule.peak_stash(item, stages, count) for item in range(stages))
    assert result.process_stash == tuple(
        schedule.process_peak_stash(item, stages, count) for item in range(processes)
    )
    for stage in range(stages):
        assert schedule.peak_stash(stage, stages, count) <= schedule.stash(stage, stages)
        assert schedule.peak_stash(stage, stages, 24 * processes) == schedule.stash(stage, stages)


@sweep(("processes", "rounds", "count"), SIZES)
def test_the_bubble_of_looped_shrinks_with_the_stages_per_device(
    processes: int, rounds: int, count: int
):
    schedule, stages = make_schedule("looped", rounds), processes * rounds
    length = schedule.num_columns(stages, count)
    idle = length - 2 * rounds * count
    interleaved = SCHEDULES["interleaved"].num_columns(processes, count) - 2 * count

    assert length == simulate(schedule.orders(stages, count)).seconds
    assert idle == interleaved == 2 * (processes - 1)
    assert schedule.bubble_fraction(stages, count) == idle / length


@sweep(("processes", "rounds", "count"), SIZES)
def test_allowed_counts_are_accepted(processes: int, rounds: int, count: int):
    make_schedule("looped", rounds).check_micro_batches(processes * rounds, count)


def test_a_count_that_does_not_fill_a_round_is_refused():
    message = error_for(12, 6)

    assert (
        "--pipeline-schedule looped with 12 stages on 4 devices needs --gradient-accumulation"
        in message
    )
    assert "a multiple of 4, got 6; use 4 or 8" in message
    assert error_for(12, 3).endswith("got 3; use 4")


def test_stages_that_do_not_fill_all_devices_are_refused():
    message = error_for(10, 12)

    assert (
        "--pipeline-schedule looped with --stages-per-device 3 needs a multiple of 3 stages"
        in message
    )
    assert "at least 2 devices, got 10 stages; use --shards 9 or 12" in message


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_looped_on_one_device_is_refused(stages: int):
    assert error_for(stages, 12).endswith(f"got {stages} stages; use --shards 6")


def test_one_device_per_process_is_accepted():
    make_schedule("looped", 2).check_devices((3, 1, 0))


def test_a_device_for_two_processes_is_refused():
    with pytest.raises(ConfigError) as refused:
        make_schedule("looped", 2).check_devices((0, 1, 0))

    message = str(refused.value)
    assert "--device-mapping gives device 0 to more than one process" in message
    assert message.endswith("list 3 different devices")
