"""Flags, settings and YAML say the same: any value comes back from any of them, exactly."""

from pathlib import Path
from typing import Any

import option_values
import pytest
from hypothesis import given

from convoy.cli.args import add_config, read_line
from convoy.config.command_line import as_flags
from convoy.config.named import read_named, read_settings, shipped_names
from convoy.config.option import ValueType, WrongType, as_words
from convoy.config.resolve import RequestedOptions, Resolved, resolve
from convoy.config.schema import option_table
from convoy.config.settings import Setting, settings_as_yaml, values_of

LISTS = [name for name, row in option_table().items() if row.kind == ValueType(str, many=True)]


def flags(values: dict[str, Any]) -> list[str]:
    """The words that set these options; an unset one has none."""
    return [
        word for name, value in values.items() for word in as_flags(option_table()[name], value)
    ]


def said(words: list[str]) -> dict[str, Setting]:
    """What words of a command line set; nothing may be wrong with them."""
    line = read_line("plan", words, "", add_config)
    assert line.problems == []
    return line.given


def resolved(words: list[str]) -> Resolved:
    return resolve(RequestedOptions(said(words), environment={}))


def from_file(settings: dict[str, Setting], folder: Path) -> dict[str, Setting]:
    """The same settings, written and read."""
    path = folder / "config.yaml"
    path.write_text(settings_as_yaml(settings), encoding="utf-8")
    read, problems = read_settings(path)
    assert problems == []
    return read


@option_values.LIGHT
@given(option_values.values())
def test_every_value_comes_back_from_its_flags(values: dict[str, Any]) -> None:
    given = {name: one for name, one in values.items() if one is not None}

    assert values_of(said(flags(values))) == given


@option_values.LIGHT
@given(option_values.agreeing())
def test_flags_to_a_run_to_its_file_to_flags_are_the_same_run(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    first = resolved(flags(values))
    read = from_file(first.settings, tmp_path_factory.mktemp("trip", numbered=True))
    resumed = resolve(RequestedOptions(named=read, environment={}))
    again = resolved(flags(values_of(read)))

    assert values_of(first.settings) == values
    assert resumed.config == first.config
    assert again.config == first.config


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_configuration_can_be_said_in_flags(name: str, tmp_path: Path) -> None:
    named, problems = read_named(name, None)
    by_name = resolve(RequestedOptions(named=named, environment={}))
    by_flags = resolved(flags(values_of(named)))
    by_file = resolve(RequestedOptions(named=from_file(by_name.settings, tmp_path), environment={}))

    assert problems == []
    assert by_flags.config == by_name.config
    assert by_file.config == by_name.config


@pytest.mark.parametrize("text", ["-x", "--lr", "--lr=1", "-5e3", "-", "a=b", "a,b", " ", "#", "'"])
def test_a_text_may_begin_like_a_flag_and_hold_anything(text: str) -> None:
    assert values_of(said(flags({"name": text, "lr": 0.5}))) == {"name": text, "lr": 0.5}


@pytest.mark.parametrize(
    "items",
    [("a,b",), (",", "b"), (r"\,",), (r"a\,b", ","), ("-x", "b,c"), ("b", "--lr"), ("-5e3",)],
)
@pytest.mark.parametrize("name", LISTS)
def test_a_list_may_hold_commas_and_dashes(name: str, items: tuple[str, ...]) -> None:
    assert values_of(said(flags({name: items, "lr": 0.5}))) == {name: items, "lr": 0.5}


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
def test_a_backslash_keeps_a_comma_in_its_item(word: str, items: tuple[str, ...]) -> None:
    assert values_of(said([f"--recompute-checkpoints={word}"])) == {"recompute_checkpoints": items}


def test_items_are_spelled_so_that_they_are_read_again() -> None:
    assert as_words(("a,b", "c")) == [r"a\,b", "c"]
    assert as_words("a,b") == ["a,b"]


@pytest.mark.parametrize(("item", "text"), [("a\\", "ends with a backslash"), ("--", "two dashes")])
def test_an_item_that_no_flag_could_say_is_refused_from_a_file_too(item: str, text: str) -> None:
    for read in (ValueType(str, many=True).check, ValueType(str, many=True).read):
        with pytest.raises(WrongType, match=text):
            read([item])


def test_a_text_of_two_dashes_is_refused_however_it_is_said() -> None:
    line = read_line("plan", ["--name=--", "--variable-filter=--", "--lr=1"], "", add_config)

    assert [*map(str, line.problems)] == [
        "--name needs a value",
        "--variable-filter cannot be two dashes, which end the options of a command",
    ]
    assert values_of(line.given) == {"lr": 1.0}
