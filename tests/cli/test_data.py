"""convoy data: its actions, each with its own help and options."""

import pytest
from support.run_convoy import convoy

from convoy.cli.data import ACTIONS
from convoy.config.schema import option_table

RUN_OPTIONS = ("bench", "show")


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_help_within_a_hundred_columns(action: str) -> None:
    result = convoy("data", action, "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: convoy data {action}")
    assert [line for line in result.out.splitlines() if len(line) > 100] == []
    assert [convoy("data", action, word) for word in ("-h", "--hel")] == [result, result]


def test_the_help_of_the_verb_lists_its_actions() -> None:
    result = convoy("data", "--help").out

    assert [name for name, (_, description) in ACTIONS.items() if description not in result] == []


@pytest.mark.parametrize("action", RUN_OPTIONS)
def test_actions_on_a_run_take_its_options(action: str) -> None:
    words = convoy("data", action, "--help-all").out.split()

    assert {row.shown_flag for row in option_table().values() if row.has_effect} <= set(words)


def test_an_unknown_action_is_refused_with_the_known_ones() -> None:
    result = convoy("data", "fecth", "cifar10")

    assert (result.code, result.out) == (2, "")
    assert "'fecth'" in result.err and all(name in result.err for name in ACTIONS)


def test_an_action_is_required() -> None:
    result = convoy("data")

    assert (result.code, result.out) == (2, "")
    assert "required: ACTION" in result.err and "`convoy data --help`" in result.err
    assert result.err.count("\n") == 1
