"""The order of actions of each schedule, and its properties for all small sizes."""

import pytest
from support.sweeps import sweep

from convoy.errors import ConfigError
from convoy.planning.actions import Forward, frees_stash, sends_gradient
from convoy.planning.schedules import SCHEDULES, Schedule, make_schedule

GROUPED, INTERLEAVED, SEQUENTIAL = (
    SCHEDULES[name] for name in ("grouped", "interleaved", "sequential")
)

LAYOUTS = [(SCHEDULES[name], stages) for name in SCHEDULES for stages in range(1, 7)]


def allowed_counts(name: str, stages: int) -> range:
    """The rule of the reference, written independently; it applies to several stages only."""
    if name in ("zero-bubble", "1f1b"):
        return range(stages, 25)
    multiple = {"grouped": 2 * stages, "interleaved": stages, "sequential": 1}[name]
    multiple = multiple if stages > 1 else 1
    return range(multiple, 25, multiple)


def lines(schedule: Schedule, stages: int, micro_batches: int) -> list[str]:
    return [
        " ".join(map(str, schedule.actions(stage, stages, micro_batches)))
        for stage in range(stages)
    ]


def error_for(schedule: Schedule, stages: int, micro_batches: int) -> str:
    with pytest.raises(ConfigError) as refused:
        schedule.check_micro_batches(stages, micro_batches)
    return str(refused.value)


def test_grouped_runs_ahead_by_twice_the_distance_to_the_end():
    assert lines(GROUPED, stages=2, micro_batches=4) == [
        "F0 F1 F2 F3 B0 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
    ]


def test_interleaved_alternates_after_filling():
    assert lines(INTERLEAVED, stages=2, micro_batches=4) == [
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_sequential_finishes_a_micro_batch_before_the_next():
    assert lines(SEQUENTIAL, stages=2, micro_batches=3) == ["F0 B0 F1 B1 F2 B2"] * 2


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_stage_alternates_forward_and_backward(name: str):
    for micro_batches in range(1, 8):
        SCHEDULES[name].check_micro_batches(1, micro_batches)

    assert lines(SCHEDULES[name], stages=1, micro_batches=3) == ["F0 B0 F1 B1 F2 B2"]
    assert SCHEDULES[name].stash(0, 1) == SCHEDULES[name].peak_stash(0, 1, 3) == 1
    assert SCHEDULES[name].num_columns(1, 3) == 6
    assert SCHEDULES[name].bubble_fraction(1, 3) == 0


@sweep(("schedule", "stages"), LAYOUTS)
def test_each_micro_batch_has_one_forward_and_one_backward_on_each_stage(
    schedule: Schedule, stages: int
):
    for micro_batches in allowed_counts(schedule.name, stages):
        for stage in range(stages):
            actions = schedule.actions(stage, stages, micro_batches)
            forwards = [action.micro for action in actions if isinstance(action, Forward)]
            gradients = [action.micro for action in actions if sends_gradient(action)]
            freed = [action.micro for action in actions if frees_stash(action)]

            assert forwards == gradients == freed == list(range(micro_batches))


@sweep(("schedule", "stages"), LAYOUTS)
def test_a_stage_reaches_its_peak_stash_and_never_exceeds_it(schedule: Schedule, stages: int):
    for micro_batches in allowed_counts(schedule.name, stages):
        for stage in range(stages):
            stash, peak = 0, 0
            for action in schedule.actions(stage, stages, micro_batches):
                stash += isinstance(action, Forward)
                peak = max(peak, stash)
                stash -= frees_stash(action)

            assert stash == 0
            assert peak == schedule.peak_stash(stage, stages, micro_batches)


@sweep("stages", range(2, 7))
def test_stash_depths_match_the_reference(stages: int):
    for stage in range(stages):
        later_stages = stages - 1 - stage

        assert GROUPED.stash(stage, stages) == 2 * later_stages + 1
        assert INTERLEAVED.stash(stage, stages) == stages - stage
        assert SEQUENTIAL.stash(stage, stages) == 1


@sweep("stages", range(2, 7))
def test_only_grouped_has_a_peak_stash_of_one_more(stages: int):
    for stage in range(stages):
        stash = [schedule.stash(stage, stages) for schedule in (GROUPED, INTERLEAVED, SEQUENTIAL)]
        peak = [
            schedule.peak_stash(stage, stages, 24)
            for schedule in (GROUPED, INTERLEAVED, SEQUENTIAL)
        ]

        assert [highest - depth for highest, depth in zip(peak, stash, strict=True)] == [1, 0, 0]


@sweep("stages", range(2, 7))
def test_lengths_and_bubble_fractions_match_the_reference(stages: int):
    for count in range(2 * stages, 25, 2 * stages):
        warmup = 2 * stages - 1

        assert GROUPED.num_columns(stages, count) == count + warmup
        assert GROUPED.bubble_fraction(stages, count) == warmup / (count + warmup)
        assert INTERLEAVED.num_columns(stages, count) == 2 * (count + stages - 1)
        assert INTERLEAVED.bubble_fraction(stages, count) == (stages - 1) / (count + stages - 1)
        assert SEQUENTIAL.num_columns(stages, count) == count * 2 * stages
        assert SEQUENTIAL.bubble_fraction(stages, count) == (stages - 1) / stages


@sweep("stages", range(2, 7))
def test_micro_batches_in_flight_match_the_reference(stages: int):
    schedules = (GROUPED, INTERLEAVED, SEQUENTIAL)

    assert [schedule.in_flight(stages) for schedule in schedules] == [2 * stages, stages, 1]


@sweep(("schedule", "stages"), LAYOUTS)
def test_allowed_counts_are_accepted(schedule: Schedule, stages: int):
    for micro_batches in allowed_counts(schedule.name, stages):
        schedule.check_micro_batches(stages, micro_batches)


@sweep(("schedule", "stages"), LAYOUTS)
def test_every_other_count_is_refused(schedule: Schedule, stages: int):
    for count in set(range(25)) - set(allowed_counts(schedule.name, stages)):
        message = error_for(schedule, stages, count)

        assert f"got {count}; use " in message


def test_a_count_below_the_minimum_is_refused_with_the_minimum():
    message = error_for(GROUPED, 4, 6)

    assert "--pipeline-schedule grouped with 4 stages needs --gradient-accumulation" in message
    assert "a multiple of 8, got 6; use 8" in message


def test_a_count_between_multiples_is_refused_with_both():
    message = error_for(INTERLEAVED, 4, 6)

    assert "--pipeline-schedule interleaved with 4 stages needs --gradient-accumulation" in message
    assert "a multiple of 4, got 6; use 4 or 8" in message


@pytest.mark.parametrize(
    ("count", "nearest"), [(38, "32 or 40"), (3, "8"), (9, "8 or 16"), (1023, "1016 or 1024")]
)
def test_grouped_refuses_with_the_nearest_counts_that_fill_four_stages(count: int, nearest: str):
    message = error_for(GROUPED, 4, count)

    assert "--pipeline-schedule grouped with 4 stages needs --gradient-accumulation" in message
    assert message.endswith(f"got {count}; use {nearest}")


def test_interleaved_refuses_two_stages_on_one_device():
    with pytest.raises(ConfigError) as refused:
        INTERLEAVED.check_devices((0, 1, 1, 0))

    message = str(refused.value)
    assert message.startswith("--pipeline-schedule interleaved trains one stage per device")
    assert "--device-mapping gives device 0, 1 more than one" in message
    assert "list 4 different devices" in message
    assert "--pipeline-schedule grouped or sequential" in message


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_accepts_one_device_per_stage(name: str):
    SCHEDULES[name].check_devices((0, 1, 3, 2))


@pytest.mark.parametrize("schedule", [GROUPED, SEQUENTIAL])
def test_other_schedules_allow_shared_devices(schedule: Schedule):
    schedule.check_devices((0, 0, 1, 1))


def test_an_unknown_schedule_is_refused_with_near_names():
    with pytest.raises(ConfigError, match="unknown schedule 'group'; did you mean grouped"):
        SCHEDULES["group"]


def test_the_options_select_a_schedule():
    for name in SCHEDULES:
        assert make_schedule(name) is SCHEDULES[name]

    assert make_schedule("looped", 3).stages_per_process == 3


def test_only_looped_allows_several_stages_per_device():
    with pytest.raises(ConfigError) as refused:
        make_schedule("grouped", 2)

    message = str(refused.value)
    assert "--stages-per-device 2 needs --pipeline-schedule looped, got grouped" in message
    assert "--stages-per-device at 1, or use looped" in message


def test_looped_with_one_stage_on_a_device_is_refused():
    with pytest.raises(ConfigError) as refused:
        make_schedule("looped")

    message = str(refused.value)
    assert message.startswith("--pipeline-schedule looped needs --stages-per-device")
    assert "at least 2, got 1" in message
    assert message.endswith("use --pipeline-schedule interleaved")


def test_a_split_backward_does_not_allow_recomputation():
    allowed = {name: make_schedule(name).allows_recompute for name in SCHEDULES}

    assert allowed == {
        "grouped": True,
        "interleaved": True,
        "1f1b": True,
        "sequential": True,
        "zero-bubble": False,
    }
    assert make_schedule("looped", 2).allows_recompute
