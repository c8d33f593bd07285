"""Timetables: the examples of the reference, the formulas of all cells, and the drawing."""

from support.sweeps import sweep

from convoy.planning.actions import Backward, Forward, frees_stash
from convoy.planning.schedules import SCHEDULES, make_schedule
from convoy.planning.timetable import (
    Timetable,
    draw_timetable,
    make_timetable,
    prefetched_inputs,
    timed_actions,
)

REFERENCE = ("grouped", "interleaved", "sequential")
LAYOUTS = [(name, stages) for name in SCHEDULES for stages in range(1, 7)]
REFERENCE_LAYOUTS = [(name, stages) for name, stages in LAYOUTS if name in REFERENCE]


def allowed_counts(name: str, stages: int) -> range:
    """The rule of the reference, written independently; it applies to several stages only."""
    if name in ("zero-bubble", "1f1b"):
        return range(stages, 25)
    multiple = {"grouped": 2 * stages, "interleaved": stages, "sequential": 1}[name]
    multiple = multiple if stages > 1 else 1
    return range(multiple, 25, multiple)


def cells(timetable: Timetable) -> list[str]:
    """Rows in the notation of the reference, with bars between cells."""
    return [" | ".join(" ".join(map(str, cell)) or "–" for cell in row) for row in timetable.rows]


def test_grouped_has_the_timeline_of_the_reference():
    assert cells(make_timetable(SCHEDULES["grouped"], stages=2, micro_batches=4)) == [
        "F0 | F1 | F2 | F3 B0 | B1 | B2 | B3",
        "– | F0 | F1 B0 | F2 B1 | F3 B2 | B3 | –",
    ]


def test_interleaved_has_the_timeline_of_the_reference():
    assert cells(make_timetable(SCHEDULES["interleaved"], stages=2, micro_batches=4)) == [
        "F0 | – | F1 | B0 | F2 | B1 | F3 | B2 | – | B3",
        "– | F0 | B0 | F1 | B1 | F2 | B2 | F3 | B3 | –",
    ]


def test_sequential_has_the_timeline_of_the_reference():
    assert cells(make_timetable(SCHEDULES["sequential"], stages=2, micro_batches=2)) == [
        "F0 | – | – | B0 | F1 | – | – | B1",
        "– | F0 | B0 | – | – | F1 | B1 | –",
    ]


@sweep(("name", "stages"), LAYOUTS)
def test_a_row_contains_the_actions_of_the_stage_in_order(name: str, stages: int):
    for micro_batches in allowed_counts(name, stages):
        timetable = make_timetable(SCHEDULES[name], stages, micro_batches)
        for stage, row in enumerate(timetable.rows):
            actions = [action for cell in row for action in cell]

            assert actions == SCHEDULES[name].actions(stage, stages, micro_batches)


@sweep(("name", "stages"), REFERENCE_LAYOUTS)
def test_every_action_is_in_the_column_of_the_formula(name: str, stages: int):
    for micro_batches in allowed_counts(name, stages):
        timetable = make_timetable(SCHEDULES[name], stages, micro_batches)
        distance = {"grouped": 1, "interleaved": 2, "sequential": 2 * stages}[name]
        distance = distance if stages > 1 else 2  # one stage alternates forward and backward
        for stage, row in enumerate(timetable.rows):
            for micro in range(micro_batches):
                assert Forward(micro) in row[distance * micro + stage]
                assert Backward(micro) in row[distance * micro + 2 * stages - 1 - stage]


@sweep(("name", "stages"), LAYOUTS)
def test_idle_cells_match_the_bubble_fraction(name: str, stages: int):
    for micro_batches in allowed_counts(name, stages):
        timetable = make_timetable(SCHEDULES[name], stages, micro_batches)
        slots = 2 if name == "grouped" and stages > 1 else 1
        for row in timetable.rows:
            full = slots * timetable.columns
            idle = full - sum(len(cell) for cell in row)

            assert max(len(cell) for cell in row) <= slots
            assert idle / full == SCHEDULES[name].bubble_fraction(stages, micro_batches)


@sweep(("name", "stages"), LAYOUTS)
def test_the_number_of_columns_follows_the_formula(name: str, stages: int):
    for micro_batches in allowed_counts(name, stages):
        timetable = make_timetable(SCHEDULES[name], stages, micro_batches)

        assert timetable.columns == SCHEDULES[name].num_columns(stages, micro_batches)
        assert [str(action)[1:] for action in timetable.rows[0][-1]] == [str(micro_batches - 1)]
        assert all(frees_stash(action) for action in timetable.rows[0][-1])


@sweep(("name", "stages"), LAYOUTS)
def test_the_stash_is_reached_in_the_steady_state_and_never_exceeded(name: str, stages: int):
    for micro_batches in allowed_counts(name, stages):
        timetable = make_timetable(SCHEDULES[name], stages, micro_batches)
        for stage, row in enumerate(timetable.rows):
            stashed: set[int] = set()
            depths = []
            for cell in row:
                freed = {action.micro for action in cell if frees_stash(action)}
                if freed:
                    depths.append(len(stashed))
                stashed |= {action.micro for action in cell if isinstance(action, Forward)}
                stashed -= freed

            assert max(depths) == min(SCHEDULES[name].stash(stage, stages), micro_batches)


def test_the_timeline_of_zero_bubble_has_weight_halves_in_its_gaps():
    assert draw_timetable(make_timetable(SCHEDULES["zero-bubble"], stages=3, micro_batches=4)) == [
        "third-step  0   1   2   3   4   5   6   7   8   9   10  11  12  13",
        "stage 0     F0  F1  F2  –   –   I0  W0  F3  I1  W1  I2  W2  I3  W3",
        "stage 1     –   F0  F1  –   I0  F2  I1  W0  F3  I2  W1  I3  W2  W3",
        "stage 2     –   –   F0  I0  F1  I1  F2  I2  W0  F3  I3  W1  W2  W3",
    ]


def test_the_timeline_of_looped_has_a_row_for_each_process_and_names_stages():
    assert draw_timetable(
        make_timetable(make_schedule("looped", 2), stages=4, micro_batches=2)
    ) == [
        "half-step  0    1    2    3    4    5    6    7    8    9",
        "process 0  0F0  0F1  2F0  2F1  –    2B0  –    2B1  0B0  0B1",
        "process 1  –    1F0  1F1  3F0  3B0  3F1  3B1  1B0  1B1  –",
    ]


def test_the_timetable_has_a_header_and_a_row_for_each_stage():
    assert draw_timetable(make_timetable(SCHEDULES["grouped"], stages=2, micro_batches=4)) == [
        "time step  0   1   2      3      4      5   6",
        "stage 0    F0  F1  F2     F3 B0  B1     B2  B3",
        "stage 1    –   F0  F1 B0  F2 B1  F3 B2  B3  –",
    ]


def test_a_wide_timetable_omits_its_middle():
    timetable = make_timetable(SCHEDULES["interleaved"], stages=2, micro_batches=64)

    assert draw_timetable(timetable, width=60) == [
        "half-step  0   1   2   3   … 123 columns …  127  128  129",
        "stage 0    F0  –   F1  B0         …         B62  –    B63",
        "stage 1    –   F0  B0  F1         …         F63  B63  –",
    ]


@sweep("width", range(40, 200))
def test_a_timetable_fits_the_width(width: int):
    for name in SCHEDULES:
        lines = draw_timetable(make_timetable(SCHEDULES[name], stages=3, micro_batches=24), width)

        assert max(map(len, lines)) <= width


def test_a_timetable_that_fits_is_complete():
    timetable = make_timetable(SCHEDULES["interleaved"], stages=2, micro_batches=4)
    full = draw_timetable(timetable)

    assert draw_timetable(timetable, width=max(map(len, full))) == full
    assert draw_timetable(timetable, width=max(map(len, full)) - 1) != full


def test_a_very_small_width_still_shows_both_ends():
    lines = draw_timetable(
        make_timetable(SCHEDULES["interleaved"], stages=2, micro_batches=8), width=1
    )

    assert lines == [
        "half-step  0   … 16 columns …  17",
        "stage 0    F0        …         B7",
        "stage 1    –         …         –",
    ]


def draw_prefetches(name: str, stages: int, micro_batches: int) -> list[str]:
    """Each row with a + after the actions that prefetch the next input."""
    orders = timed_actions(SCHEDULES[name], stages, micro_batches)
    return [
        " ".join(
            f"{timed.action}{'+' if is_prefetched else ''}"
            for timed, is_prefetched in zip(row, prefetched_inputs(orders, row), strict=True)
        )
        for row in orders
    ]


def test_the_next_input_is_prefetched_if_it_is_sent_by_then():
    assert draw_prefetches("interleaved", 2, 4) == [
        "F0 F1+ B0 F2+ B1 F3+ B2 B3",
        "F0 B0+ F1 B1+ F2 B2+ F3 B3",
    ]
    assert draw_prefetches("zero-bubble", 2, 3) == [
        "F0 F1 I0 W0 F2+ I1 W1+ I2 W2",
        "F0 I0+ F1 I1 W0+ F2 I2 W1 W2",
    ]


def test_sequential_prefetches_no_input():
    assert draw_prefetches("sequential", 2, 2) == ["F0 B0 F1 B1"] * 2
