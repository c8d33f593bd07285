"""Short numbers, counts and escaped text."""

import pytest

from convoy.text import format_si, one_line, pluralize


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (1_000, "1.0 k"),
        (172_506, "172.5 k"),
        (999_940, "999.9 k"),
        (999_960, "1.0 M"),
        (4_089_184_256, "4.1 G"),
        (2_500_000_000_000, "2500.0 G"),
    ],
)
def test_numbers_are_shortened(number: int, text: str):
    assert format_si(number) == text


def test_counts_have_singular_and_plural_nouns():
    counts = [pluralize(n, word) for word in ("stage", "process", "micro-batch") for n in (0, 1, 2)]

    assert counts == [
        *("0 stages", "1 stage", "2 stages"),
        *("0 processes", "1 process", "2 processes"),
        *("0 micro-batches", "1 micro-batch", "2 micro-batches"),
    ]


def test_one_line_escapes_breaks_and_controls():
    assert one_line("a\nb\tc\x1b[0m é…") == "a\\nb\\tc\\x1b[0m é…"
