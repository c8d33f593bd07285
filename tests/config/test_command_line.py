"""Arguments become settings, and all problems of a command line are reported together."""

from typing import Any

import pytest
from hypothesis import given
from support import option_values

from convoy.config.command_line import ConfigArgumentParser, add_flags, expand_prefixes, parse_flags
from convoy.config.flags import canonical
from convoy.config.option import to_cli_words
from convoy.config.schema import COMMAND_LINE, SECTIONS, option_table, setting_values
from convoy.errors import ConfigError


def make_parser() -> ConfigArgumentParser:
    parser = ConfigArgumentParser(prog="convoy test", allow_abbrev=False)
    parser.add_argument("run", nargs="?")
    add_flags(parser, canonical())
    return parser


def parse(*words: str) -> tuple[dict[str, Any], list[str]]:
    parser = make_parser()
    args, extra = parser.parse_known_args(expand_prefixes(list(words), parser))
    assert extra == []
    parsed = parse_flags(args.flag_occurrences, canonical())
    assert all(setting.source == COMMAND_LINE for setting in parsed.settings.values())
    return setting_values(parsed.settings), [*map(str, parsed.problems)]


def values(*words: str) -> dict[str, Any]:
    parsed, problems = parse(*words)
    assert problems == []
    return parsed


def problems(*words: str) -> list[str]:
    return parse(*words)[1]


def cli_words(name: str, value: Any) -> list[str]:
    """The arguments that set an option to this value."""
    row = option_table()[name]
    if value is None:
        return []
    if isinstance(value, bool):
        return [row.flag if value else "--no-" + row.flag[2:]]
    words = to_cli_words(value)
    if len(words) > 1 and not any(word.startswith("-") for word in words):
        return [row.flag, *words]
    return [f"{row.flag}={','.join(words)}"]


@option_values.LIGHT
@given(option_values.values())
def test_every_value_of_every_option_is_parsed_from_its_arguments(expected: dict[str, Any]) -> None:
    words = [word for name, value in expected.items() for word in cli_words(name, value)]

    assert values(*words) == {name: value for name, value in expected.items() if value is not None}


@pytest.mark.parametrize(
    ("words", "expected"),
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
def test_arguments_are_parsed(words: str, expected: dict[str, Any]) -> None:
    assert values(*words.split()) == expected


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
def test_a_switch_can_be_turned_on_and_off_in_every_way(words: str, augment: bool) -> None:
    assert values(*words.split()) == {"augment": augment}


def test_a_switch_does_not_take_the_next_word() -> None:
    parser = make_parser()
    args, _ = parser.parse_known_args(expand_prefixes(["--augment", "runs/a"], parser))

    assert args.run == "runs/a"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--lr fast", "--lr expects a number, got 'fast'"),
        ("--lr", "--lr needs a value"),
        ("--lr --seed 1", "--lr needs a value"),
        ("--name=", "--name needs a value"),
        ("--lr -1e-3", "--lr must be at least 0, got -0.001"),
        ("--lr=-inf", "--lr expects a finite number, got -inf"),
        ("--epochs -1", "--epochs must be greater than 0, got -1"),
        ("--threads 1000", "--threads must be at most 512, got 1000"),
        ("--device-mapping 0 -1", "--device-mapping must be at least 0, got -1"),
        ("--augment=maybe", "--augment takes no value except true or false, got 'maybe'"),
        ("--stem tiny", "--stem cannot be 'tiny'; choose from auto, large, small"),
        ("--seed 1" + 30 * "0", "--seed expects an integer of at most 18 digits"),
    ],
)
def test_a_wrong_value_is_reported_with_the_flag_as_typed(words: str, text: str) -> None:
    assert problems(*words.split()) == [text]


def test_all_problems_are_reported_together() -> None:
    assert problems("--lr", "--seed=x", "--stem=smal", "--threads=-1", "--augment=2") == [
        "--lr needs a value",
        "--seed expects an integer, got 'x'",
        "--augment takes no value except true or false, got '2'",
        "--stem cannot be 'smal'; did you mean small?",
        "--threads must be at least 0, got -1",
    ]


def test_a_value_beyond_its_limits_is_still_in_the_settings() -> None:
    parsed, lines = parse("--data", "mnist", "--epoch", "x")

    assert parsed == {"data": "mnist"}
    assert len(lines) == 2


def test_an_invalid_argument_that_is_not_an_option_refers_to_the_help() -> None:
    parser = make_parser()
    parser.add_argument("--depth", type=int)

    with pytest.raises(ConfigError, match=r"^argument --depth: .*; see `convoy test --help`$"):
        parser.parse_known_args(["--depth", "x"])


def test_the_help_lists_every_option_with_an_effect_once_in_its_section() -> None:
    text = make_parser().format_help()
    flags = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    rows = [row for row in option_table().values() if row.has_effect]
    titles = [
        SECTIONS[name].__doc__.split(".")[0].lower() for name in {row.section for row in rows}
    ]

    assert flags == [row.shown_flag for row in rows]
    assert all(f"\n{title}:\n" in text for title in titles)


def test_the_help_shows_defaults_choices_and_how_to_turn_a_switch_off() -> None:
    text = " ".join(make_parser().format_help().split())

    assert "--lr X Base learning rate, which warm-up and the schedule scale. [0.1]" in text
    assert "--stem auto|small|large" in text
    assert "[true; --no-augment]" in text.replace("--no- augment", "--no-augment")
    assert "to train, instead of --epochs. --stop-after" in text
