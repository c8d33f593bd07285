"""Every value is restored exactly from its flags and from its YAML file."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from support import option_values
from support.run_convoy import parse_plan_command
from support.sweeps import sweep

from convoy.config.named_configs import read_named_config, read_settings, shipped_config_names
from convoy.config.option import OptionTypeError, ValueType, to_cli_words
from convoy.config.resolve import ResolvedConfig, resolve
from convoy.config.schema import (
    RequestedOptions,
    Setting,
    option_table,
    setting_values,
    settings_as_yaml,
)

LISTS = [
    name for name, row in option_table().items() if row.value_type == ValueType(str, is_list=True)
]


def to_args(values: dict[str, Any]) -> list[str]:
    """The arguments that set these options; none for an unset option."""
    return [
        word for name, value in values.items() for word in option_table()[name].to_cli_args(value)
    ]


def parse_words(words: list[str]) -> dict[str, Setting]:
    """The settings of a command line without problems."""
    parsed = parse_plan_command(words)
    assert parsed.problems == []
    return parsed.settings


def resolve_words(words: list[str]) -> ResolvedConfig:
    return resolve(RequestedOptions(parse_words(words), environment={}))


def write_and_read(settings: dict[str, Setting], folder: Path) -> dict[str, Setting]:
    path = folder / "config.yaml"
    path.write_text(settings_as_yaml(settings), encoding="utf-8")
    read, problems = read_settings(path)
    assert problems == []
    return read


@option_values.LIGHT
@given(option_values.values())
def test_every_value_is_restored_from_its_flags(values: dict[str, Any]) -> None:
    set_values = {name: value for name, value in values.items() if value is not None}

    assert setting_values(parse_words(to_args(values))) == set_values


@option_values.LIGHT
@given(option_values.consistent_values())
def test_a_config_is_restored_from_its_file_and_from_flags(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    first = resolve_words(to_args(values))
    read = write_and_read(first.settings, tmp_path_factory.mktemp("trip", numbered=True))
    from_yaml = resolve(RequestedOptions(named_config=read, environment={}))
    from_args = resolve_words(to_args(setting_values(read)))

    assert setting_values(first.settings) == values
    assert from_yaml.config == first.config
    assert from_args.config == first.config


@sweep("name", shipped_config_names())
def test_a_shipped_configuration_can_be_written_as_flags(name: str, tmp_path: Path) -> None:
    named, problems = read_named_config(name, None)
    original = resolve(RequestedOptions(named_config=named, environment={}))
    from_args = resolve_words(to_args(setting_values(named)))
    from_yaml = resolve(
        RequestedOptions(named_config=write_and_read(original.settings, tmp_path), environment={})
    )

    assert problems == []
    assert from_args.config == original.config
    assert from_yaml.config == original.config


@pytest.mark.parametrize("text", ["-x", "--lr", "--lr=1", "-5e3", "-", "a=b", "a,b", " ", "#", "'"])
def test_a_text_may_start_like_a_flag(text: str) -> None:
    assert setting_values(parse_words(to_args({"name": text, "lr": 0.5}))) == {
        "name": text,
        "lr": 0.5,
    }


ITEMS = [("a,b",), (",", "b"), (r"\,",), (r"a\,b", ","), ("-x", "b,c"), ("b", "--lr"), ("-5e3",)]


@sweep(("name", "items"), product(LISTS, ITEMS))
def test_a_list_may_contain_commas_and_dashes(name: str, items: tuple[str, ...]) -> None:
    assert setting_values(parse_words(to_args({name: items, "lr": 0.5}))) == {
        name: items,
        "lr": 0.5,
    }


@pytest.mark.parametrize(
    ("word", "items"),
    [
        (r"a\,b", ("a,b",)),
        (r"a\,b,c", ("a,b", "c")),
        (r"layer\d{1\,2}", (r"layer\d{1,2}",)),
        (r"\d", (r"\d",)),
        ("a,,b,", ("a", "b")),
    ],
)
def test_a_backslash_escapes_a_comma(word: str, items: tuple[str, ...]) -> None:
    assert setting_values(parse_words([f"--recompute-checkpoints={word}"])) == {
        "recompute_checkpoints": items
    }


def test_commas_in_items_are_escaped() -> None:
    assert to_cli_words(("a,b", "c")) == [r"a\,b", "c"]
    assert to_cli_words("a,b") == ["a,b"]


@pytest.mark.parametrize(("item", "text"), [("a\\", "end with a backslash"), ("--", "'--'")])
def test_an_item_that_cannot_be_written_as_a_flag_is_refused(item: str, text: str) -> None:
    for parse in (ValueType(str, is_list=True).check, ValueType(str, is_list=True).parse):
        with pytest.raises(OptionTypeError, match=text):
            parse([item])


def test_two_dashes_are_refused_as_a_value() -> None:
    parsed = parse_plan_command(["--name=--", "--variable-filter=--", "--lr=1"])

    name, variable_filter = map(str, parsed.problems)
    assert name == "--name needs a value"
    assert variable_filter.startswith("--variable-filter cannot be '--'")
    assert setting_values(parsed.settings) == {"lr": 1.0}
