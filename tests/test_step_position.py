"""The step position: update and micro-batch of the current computation."""

import pytest

from convoy.rng import StepPosition


def advance_positions(position: StepPosition, count: int) -> list[tuple[int, int]]:
    """Update and micro-batch of the next positions."""
    positions = []
    for _ in range(count):
        position.advance()
        positions.append((position.update, position.micro))
    return positions


def test_micro_batches_are_counted_update_by_update():
    assert advance_positions(StepPosition(range(3)), 7) == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (1, 1), (1, 2)),
        (2, 0),
    ]


@pytest.mark.parametrize(
    ("micros", "expected"),
    [
        (
            range(4, 6),
            [(0, 4), (0, 5), (1, 4), (1, 5)],
        ),  # the third replica with two micro-batches each
        (range(1, 8, 2), [(0, 1), (0, 3), (0, 5), (0, 7)]),  # every second micro-batch
    ],
)
def test_a_replica_numbers_micro_batches_over_all_replicas(
    micros: range, expected: list[tuple[int, int]]
):
    assert advance_positions(StepPosition(micros), 4) == expected


@pytest.mark.parametrize("updates", [0, 1, 5])
def test_a_resumed_run_continues_at_its_position(updates: int):
    uninterrupted, resumed = StepPosition(range(2, 6)), StepPosition(range(2, 6))
    advance_positions(uninterrupted, 4 * updates)
    resumed.resume_after(updates)

    assert advance_positions(resumed, 9) == advance_positions(uninterrupted, 9)


def test_a_replayed_micro_batch_has_its_original_position():
    position = StepPosition(range(2))
    advance_positions(position, 4)
    with position.replay(1):
        assert (position.update, position.micro) == (0, 1)

    assert (position.update, position.micro) == (1, 1)
    assert advance_positions(position, 1) == [(2, 0)]


def test_a_failed_replay_restores_the_position():
    position = StepPosition(range(2))
    advance_positions(position, 3)
    with pytest.raises(ZeroDivisionError), position.replay(0):
        _ = 1 // 0

    assert (position.update, position.micro) == (1, 0)
