"""The rows and the summary of a proof."""

import json
from dataclasses import replace

from convoy.planning.topology import Layout
from convoy.report.proof import TABLE_HEADER, Proof, as_json, format_row, summary_line
from convoy.report.summary import Summary

SUMMARY = Summary(
    weights_sha256="ab" * 32,
    updates=4,
    epochs=1,
    images=64,
    seconds=1.25,
    layout="1 replica × 2 stages",
    exit_reason="done",
    peak_bytes=[290_400_000, 295_000_000],
    peak_stash=[2, 1],
)
EQUAL = Proof(Layout(stages=2, recompute=True), SUMMARY, equal=True, difference=0.0)
DIFFERENT = Proof(Layout(stages=2), SUMMARY, equal=False, difference=3e-7)
FAST_REDUCTION = Proof(Layout(replicas=2, reduction="fast"), SUMMARY, equal=False, difference=3e-7)


def test_a_row_is_aligned_with_the_table_header() -> None:
    row = format_row(EQUAL)

    assert row.startswith("1 × 2 ")
    for column, value in [("schedule", "interleaved"), ("recompute", "yes"), ("peak", "290 295")]:
        assert row.index(value) == TABLE_HEADER.index(column)
    assert row.endswith("yes")


def test_a_resumed_layout_is_shown_with_its_origin() -> None:
    resumed = Proof(Layout(replicas=4), SUMMARY, True, 0.0, resumed_from=Layout(stages=2))

    assert format_row(resumed).startswith("1 × 2 → 4 × 1")


def test_different_weights_are_shown_with_their_difference() -> None:
    assert format_row(DIFFERENT).endswith("no: differs by 3.0e-07")
    assert format_row(FAST_REDUCTION).endswith("differs by 3.0e-07")
    assert not DIFFERENT.is_as_expected and FAST_REDUCTION.is_as_expected and EQUAL.is_as_expected


def test_the_summary_line_counts_the_exact_layouts() -> None:
    assert summary_line([EQUAL, FAST_REDUCTION]) == (
        f"1 of 1 runs with exact reduction have bit-identical weights: sha256 {'ab' * 32}"
    )
    assert (
        summary_line([EQUAL, DIFFERENT]) == "1 of 2 runs with exact reduction differ from the first"
    )


def test_a_fast_layout_with_equal_weights_proves_nothing() -> None:
    equal_by_chance = replace(FAST_REDUCTION, equal=True, difference=0.0)

    assert summary_line([EQUAL, equal_by_chance]).startswith("1 of 1 runs")


def test_the_result_is_available_as_json() -> None:
    proof = json.loads(json.dumps(as_json([EQUAL, FAST_REDUCTION])))

    assert proof["equal"] is True
    assert json.loads(json.dumps(as_json([EQUAL, DIFFERENT])))["equal"] is False
    assert {"layout", "weights_sha256", "exact", "equal", "difference"} <= set(proof["layouts"][0])
    assert [item["exact"] for item in proof["layouts"]] == [True, False]
