"""The zero-bubble schedule: its order, and its length and stash for all small sizes."""

import pytest
from support.schedule_simulation import Costs, simulate
from support.sweeps import sweep

from convoy.errors import ConfigError
from convoy.planning.actions import BackwardInput, BackwardWeight, Forward
from convoy.planning.schedules import SCHEDULES

ZERO_BUBBLE, INTERLEAVED = SCHEDULES["zero-bubble"], SCHEDULES["interleaved"]

SIZES = [(stages, count) for stages in range(2, 7) for count in range(stages, 25)]


def test_weight_halves_of_stage_s_lag_by_s_micro_batches():
    rows = [" ".join(map(str, row)) for row in ZERO_BUBBLE.orders(3, 4)]

    assert rows == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


@sweep(("stages", "count"), SIZES)
def test_each_half_runs_once_per_micro_batch_and_in_order(stages: int, count: int):
    for row in ZERO_BUBBLE.orders(stages, count):
        for kind in (Forward, BackwardInput, BackwardWeight):
            assert [item.micro for item in row if isinstance(item, kind)] == list(range(count))


@sweep(("stages", "count"), SIZES)
def test_without_weight_halves_it_is_interleaved(stages: int, count: int):
    for stage in range(stages):
        actual = ZERO_BUBBLE.actions(stage, stages, count)
        without_weights = [
            "FB"[isinstance(item, BackwardInput)] + str(item.micro)
            for item in actual
            if not isinstance(item, BackwardWeight)
        ]

        assert without_weights == [
            str(action) for action in INTERLEAVED.actions(stage, stages, count)
        ]


@sweep(("stages", "count"), SIZES)
def test_no_stage_stashes_more_than_the_first_of_interleaved(stages: int, count: int):
    result = simulate(ZERO_BUBBLE.orders(stages, count))
    peak = INTERLEAVED.peak_stash(0, stages, count)

    assert not result.deadlocked
    assert result.stash == result.process_stash == (peak,) * stages
    for stage in range(stages):
        assert ZERO_BUBBLE.peak_stash(stage, stages, count) == peak


@sweep(("stages", "count"), SIZES)
def test_the_bubble_of_zero_bubble_is_one_pass_through_the_pipeline(stages: int, count: int):
    """Interleaved is idle three times as long: (S − 1) times F, I and W."""
    length = ZERO_BUBBLE.num_columns(stages, count)
    full = simulate(
        INTERLEAVED.orders(stages, count), Costs((1.0,) * stages, (2.0,) * stages)
    ).seconds

    assert length == simulate(ZERO_BUBBLE.orders(stages, count)).seconds == 3 * count + stages - 1
    assert ZERO_BUBBLE.bubble_fraction(stages, count) == (stages - 1) / length
    assert full == 3 * (count + stages - 1)


@sweep(("stages", "count"), SIZES)
def test_a_stage_never_exceeds_its_maximum_lead(stages: int, count: int):
    for stage, row in enumerate(ZERO_BUBBLE.orders(stages, count)):
        lead = peak = 0
        for action in row:
            lead += isinstance(action, Forward) - isinstance(action, BackwardInput)
            peak = max(peak, lead)

        assert peak == ZERO_BUBBLE.max_lead(stage, stages, count)


def test_any_count_that_fills_the_pipeline_is_accepted():
    for count in range(4, 30):
        ZERO_BUBBLE.check_micro_batches(4, count)


@pytest.mark.parametrize("count", range(4))
def test_a_count_that_does_not_fill_the_pipeline_is_refused(count: int):
    with pytest.raises(ConfigError) as refused:
        ZERO_BUBBLE.check_micro_batches(4, count)

    message = str(refused.value)
    assert "--pipeline-schedule zero-bubble with 4 stages needs --gradient-accumulation" in message
    assert f"at least 4, got {count}; use 4" in message
