"""convoy data: its actions, each with help and options of its own."""

import pytest
from running import convoy

from convoy.cli.data import ACTIONS
from convoy.config.schema import option_table

OF_A_RUN = ("bench", "show")


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_help_within_a_hundred_columns(action: str) -> None:
    said = convoy("data", action, "--help")

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"usage: convoy data {action}")
    assert [line for line in said.out.splitlines() if len(line) > 100] == []
    assert [convoy("data", action, word) for word in ("-h", "--hel")] == [said, said]


def test_the_help_of_the_verb_lists_its_actions() -> None:
    said = convoy("data", "--help").out

    assert [name for name, (_, says) in ACTIONS.items() if says not in said] == []


@pytest.mark.parametrize("action", OF_A_RUN)
def test_actions_on_a_run_take_its_options(action: str) -> None:
    words = convoy("data", action, "--help").out.split()

    assert {row.flag for row in option_table().values() if row.does_something} <= set(words)


def test_an_unknown_action_is_answered_with_those_there_are() -> None:
    said = convoy("data", "fecth", "cifar10")

    assert (said.code, said.out) == (2, "")
    assert "'fecth'" in said.err and all(name in said.err for name in ACTIONS)


def test_no_action_is_no_command() -> None:
    said = convoy("data")

    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "convoy: the following arguments are required: action; see `convoy data --help`\n"
    )
