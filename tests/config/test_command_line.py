"""Words become settings, and every problem of a command line is told at once."""

from typing import Any

import option_values
import pytest
from hypothesis import given

from convoy.config.command_line import Parser, add_flags, read_flags, spell_out
from convoy.config.flags import canonical
from convoy.config.option import as_words
from convoy.config.schema import SECTIONS, option_table
from convoy.config.settings import COMMAND_LINE, values_of
from convoy.errors import ConfigError


def parser() -> Parser:
    made = Parser(prog="convoy test", allow_abbrev=False)
    made.add_argument("run", nargs="?")
    add_flags(made, canonical())
    return made


def read(*words: str) -> tuple[dict[str, Any], list[str]]:
    made = parser()
    own, extra = made.parse_known_args(spell_out(list(words), made))
    assert extra == []
    found = read_flags(own.typed, canonical())
    assert all(setting.source == COMMAND_LINE for setting in found.given.values())
    return values_of(found.given), [*map(str, found.problems)]


def values(*words: str) -> dict[str, Any]:
    given, problems = read(*words)
    assert problems == []
    return given


def problems(*words: str) -> list[str]:
    return read(*words)[1]


def typed(name: str, value: Any) -> list[str]:
    """The words with which a user would set an option."""
    row = option_table()[name]
    if value is None:
        return []
    if isinstance(value, bool):
        return [row.flag if value else "--no-" + row.flag[2:]]
    words = as_words(value)
    if len(words) > 1 and not any(word.startswith("-") for word in words):
        return [row.flag, *words]
    return [f"{row.flag}={','.join(words)}"]


@option_values.LIGHT
@given(option_values.values())
def test_every_value_of_every_option_comes_back_from_its_words(asked: dict[str, Any]) -> None:
    words = [word for name, value in asked.items() for word in typed(name, value)]

    assert values(*words) == {name: one for name, one in asked.items() if one is not None}


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("--lr=1e-3", {"lr": 0.001}),
        ("--lr 1e-3", {"lr": 0.001}),
        ("--weight-avg-n -1", {"weight_avg_n": -1}),
        ("--weight-avg-n=-1", {"weight_avg_n": -1}),
        ("--batch-size 8", {"micro_batch_size": 8}),
        ("--lr 1 --lr 2", {"lr": 2.0}),
        ("--epochs 3 --epoch 4", {"epoch": 4.0}),
        ("--pipeline-splits a b,c", {"pipeline_splits": ("a", "b", "c")}),
        ("--pipeline-splits=a,b", {"pipeline_splits": ("a", "b")}),
        ("--pipeline-splits", {"pipeline_splits": ()}),
        ("--device-mapping 0 1,1 --lr 1", {"device_mapping": (0, 1, 1), "lr": 1.0}),
        ("--lr-epoch-decay 30 60.5", {"lr_epoch_decay": (30.0, 60.5)}),
    ],
)
def test_words_are_read_by_the_table(words: str, asked: dict[str, Any]) -> None:
    assert values(*words.split()) == asked


@pytest.mark.parametrize(
    ("words", "augment"),
    [
        ("--augment", True),
        ("--no-augment", False),
        ("--augment=false", False),
        ("--augment=True", True),
        ("--no-augment=false", True),
        ("--no-augment=true", False),
        ("--aug=false", False),
        ("--no-aug", False),
        ("--augment --no-augment", False),
        ("--no-augment --augment", True),
    ],
)
def test_a_switch_is_turned_on_and_off_in_every_way(words: str, augment: bool) -> None:
    assert values(*words.split()) == {"augment": augment}


def test_a_switch_leaves_the_next_word_alone() -> None:
    made = parser()
    own, _ = made.parse_known_args(spell_out(["--augment", "runs/a"], made))

    assert own.run == "runs/a"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--lr fast", "--lr expects a number, got 'fast'"),
        ("--lr", "--lr needs a value"),
        ("--lr --seed 1", "--lr needs a value"),
        ("--name=", "--name needs a value"),
        ("--lr -1e-3", "--lr must be at least 0, got -0.001"),
        ("--lr=-inf", "--lr expects a finite number, got -inf"),
        ("--epochs -1", "--epochs must be above 0, got -1"),
        ("--threads 1000", "--threads must be at most 512, got 1000"),
        ("--device-mapping 0 -1", "--device-mapping must be at least 0, got -1"),
        ("--augment=maybe", "--augment takes no value, or true or false, got 'maybe'"),
        ("--stem tiny", "--stem cannot be 'tiny'; known are auto, large, small"),
        ("--seed 1" + 30 * "0", "--seed expects a whole number of at most 18 digits"),
    ],
)
def test_a_wrong_value_is_told_with_the_flag_as_typed(words: str, text: str) -> None:
    assert problems(*words.split()) == [text]


def test_all_problems_of_a_line_come_together() -> None:
    assert problems("--lr", "--seed=x", "--stem=smal", "--threads=-1", "--augment=2") == [
        "--lr needs a value",
        "--seed expects a whole number, got 'x'",
        "--augment takes no value, or true or false, got '2'",
        "--stem cannot be 'smal'; did you mean small?",
        "--threads must be at least 0, got -1",
    ]


def test_a_value_beyond_its_limits_stays_for_the_rules() -> None:
    given, told = read("--data", "mnist", "--epoch", "x")

    assert given == {"data": "mnist"}
    assert len(told) == 2


def test_a_wrong_word_of_the_verb_itself_is_one_line_that_leads_to_the_help() -> None:
    made = parser()
    made.add_argument("--depth", type=int)

    with pytest.raises(ConfigError, match=r"^argument --depth: .*; see `convoy test --help`$"):
        made.parse_known_args(["--depth", "x"])


def test_the_help_shows_every_option_that_does_something_once_under_its_section() -> None:
    text = parser().format_help()
    shown = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    rows = [row for row in option_table().values() if row.does_something]
    titles = [
        SECTIONS[name].__doc__.split(".")[0].lower() for name in {row.section for row in rows}
    ]

    assert shown == [row.flag for row in rows]
    assert all(f"\n{title}:\n" in text for title in titles)


def test_the_help_tells_defaults_choices_and_how_to_turn_a_switch_off() -> None:
    text = " ".join(parser().format_help().split())

    assert "--lr X Learning rate. [0.1]" in text
    assert "--stem auto|small|large" in text
    assert "[true; --no-augment]" in text.replace("--no- augment", "--no-augment")
    assert "--updates N Length in weight updates. --stop-after" in text
