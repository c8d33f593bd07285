"""The option table: one name, one help, one default of the right kind for each option."""

from dataclasses import fields
from typing import Any

import option_values
import pytest
from hypothesis import given

from convoy.config.option import Option
from convoy.config.schema import SECTIONS, RunConfig, build_config, flat_values, option_table

ROWS = list(option_table().values())


def by_name(row: Option) -> str:
    return row.name


def test_names_are_unique_over_all_sections() -> None:
    names = [one.name for section in SECTIONS.values() for one in fields(section)]

    assert sorted(names) == sorted(set(names)) == sorted(option_table())


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_a_flag_is_its_name_in_kebab_case(row: Option) -> None:
    assert row.flag == "--" + "-".join(row.name.split("_"))
    assert row.name == row.name.lower()


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_every_option_has_help_that_is_a_sentence(row: Option) -> None:
    text = row.declared.help

    assert text.endswith(".") and text[0].isupper() and "\n" not in text


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_every_default_keeps_its_own_type_and_limits(row: Option) -> None:
    assert row.kind.check(row.default) == row.default
    assert row.problem(row.default) is None


def test_every_section_says_what_it_is_for() -> None:
    assert all(str(section.__doc__).endswith(".") for section in SECTIONS.values())


def test_no_values_give_the_defaults() -> None:
    defaults = {row.name: row.default for row in ROWS}

    assert build_config({}) == build_config(defaults) == RunConfig()
    assert flat_values(RunConfig()) == defaults


@option_values.LIGHT
@given(option_values.values())
def test_flat_values_come_back_from_their_sections(values: dict[str, Any]) -> None:
    assert flat_values(build_config(values)) == values


@option_values.LIGHT
@given(option_values.values())
def test_values_within_limits_have_no_problem(values: dict[str, Any]) -> None:
    problems = {name: option_table()[name].problem(value) for name, value in values.items()}

    assert {name: text for name, text in problems.items() if text} == {}
