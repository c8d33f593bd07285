"""The option table: every option has a unique name, a help text and a valid default."""

from dataclasses import fields
from typing import Any

from hypothesis import given
from support import option_values
from support.sweeps import sweep

from convoy.config.option import Option
from convoy.config.schema import SECTIONS, RunConfig, build_config, flatten_config, option_table

ROWS = list(option_table().values())


def test_names_are_unique_over_all_sections() -> None:
    names = [row.name for section in SECTIONS.values() for row in fields(section)]

    assert sorted(names) == sorted(set(names)) == sorted(option_table())


@sweep("row", ROWS)
def test_a_flag_is_the_option_name_in_kebab_case(row: Option) -> None:
    assert row.flag == "--" + "-".join(row.name.split("_"))
    assert row.name == row.name.lower()


@sweep("row", ROWS)
def test_every_help_text_is_a_sentence(row: Option) -> None:
    text = row.help

    assert text.endswith(".") and not text[0].islower() and "\n" not in text


@sweep("row", ROWS)
def test_every_default_has_the_right_type_and_is_within_limits(row: Option) -> None:
    assert row.value_type.check(row.default) == row.default
    assert row.problem(row.default) is None


def test_every_section_has_a_docstring() -> None:
    assert all(str(section.__doc__).rstrip().endswith(".") for section in SECTIONS.values())


def test_without_values_a_config_has_the_defaults() -> None:
    defaults = {row.name: row.default for row in ROWS}

    assert build_config({}) == build_config(defaults) == RunConfig()
    assert flatten_config(RunConfig()) == defaults


@option_values.LIGHT
@given(option_values.values())
def test_flat_values_are_restored_from_a_config(values: dict[str, Any]) -> None:
    assert flatten_config(build_config(values)) == values


@option_values.LIGHT
@given(option_values.values())
def test_values_within_limits_have_no_problem(values: dict[str, Any]) -> None:
    problems = {name: option_table()[name].problem(value) for name, value in values.items()}

    assert {name: text for name, text in problems.items() if text} == {}
