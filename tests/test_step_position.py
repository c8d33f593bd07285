"""The moment: which micro-batch of which update is at hand."""

import pytest

from convoy.rng import StepPosition


def advance_positions(position: StepPosition, count: int) -> list[tuple[int, int]]:
    """Update and micro-batch of the next so many."""
    seen = []
    for _ in range(count):
        position.advance()
        seen.append((position.update, position.micro))
    return seen


def test_micro_batches_are_counted_update_by_update():
    assert advance_positions(StepPosition(range(3)), 7) == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (1, 1), (1, 2)),
        (2, 0),
    ]


@pytest.mark.parametrize(
    ("micros", "expected"),
    [
        (range(4, 6), [(0, 4), (0, 5), (1, 4), (1, 5)]),  # the third replica of two each
        (range(1, 8, 2), [(0, 1), (0, 3), (0, 5), (0, 7)]),  # every second, as partners take turns
    ],
)
def test_a_replica_counts_over_all_of_them(micros: range, expected: list[tuple[int, int]]):
    assert advance_positions(StepPosition(micros), 4) == expected


@pytest.mark.parametrize("updates", [0, 1, 5])
def test_a_resumed_run_resumes_where_it_was(updates: int):
    through, resumed = StepPosition(range(2, 6)), StepPosition(range(2, 6))
    advance_positions(through, 4 * updates)
    resumed.resume_after(updates)

    assert advance_positions(resumed, 9) == advance_positions(through, 9)


def test_a_micro_batch_computed_again_is_the_one_that_it_was():
    position = StepPosition(range(2))
    advance_positions(position, 4)
    with position.replay(1):
        assert (position.update, position.micro) == (0, 1)

    assert (position.update, position.micro) == (1, 1)
    assert advance_positions(position, 1) == [(2, 0)]


def test_even_a_failed_computation_leaves_the_moment_unchanged():
    position = StepPosition(range(2))
    advance_positions(position, 3)
    with pytest.raises(ZeroDivisionError), position.replay(0):
        _ = 1 // 0

    assert (position.update, position.micro) == (1, 0)
