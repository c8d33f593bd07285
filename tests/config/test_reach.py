"""How many options do something, where, and how many are not whole yet: counted, and pinned."""

from convoy.config.described import not_available
from convoy.config.fields import Reach
from convoy.config.schema import option_table

ROWS = option_table().values()

# An option that joins or leaves a kind changes these on purpose.
WORKS = {Reach.HERE: 182, Reach.CUDA: 3, Reach.NOWHERE: 11}

# This number may only fall, once all options are declared: what is built stays built.
WITH_VALUES_NOT_AVAILABLE = 14


def test_every_option_is_of_the_kind_it_was_counted_for() -> None:
    counted = {reach: sum(row.declared.reach is reach for row in ROWS) for reach in Reach}

    assert counted == WORKS


def test_the_options_with_values_that_are_not_available_become_fewer() -> None:
    gaps = [row.name for row in ROWS if not_available(row) is not None]

    assert len(gaps) == WITH_VALUES_NOT_AVAILABLE, gaps


def test_what_does_nothing_here_says_why() -> None:
    silent = [
        row.name for row in ROWS if (row.declared.reach is Reach.HERE) is bool(row.declared.why)
    ]

    assert silent == []


def test_a_default_is_always_available() -> None:
    assert [row.name for row in ROWS if not row.is_ready(row.default)] == []
