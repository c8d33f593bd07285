"""Prefixes, values and words that no table knows."""

from collections.abc import Callable

import pytest

from convoy.config.command_line import Parser, add_flags, spell_out, unknown_words
from convoy.config.flags import canonical


@pytest.fixture(scope="module")
def parser() -> Parser:
    made = Parser(prog="convoy test", allow_abbrev=False)
    made.add_argument("--json", action="store_true")
    made.add_argument("--jail", metavar="DIR")
    add_flags(made, canonical())
    return made


@pytest.fixture
def spelled(parser: Parser) -> Callable[[str], str]:
    return lambda line: " ".join(spell_out(line.split(), parser))


@pytest.fixture
def told(parser: Parser) -> Callable[[str], list[str]]:
    def tell(line: str) -> list[str]:
        extra = parser.parse_known_args(spell_out(line.split(), parser))[1]
        return [str(problem) for problem in unknown_words(extra, parser)]

    return tell


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("--gradient-a 2", "--gradient-accumulation=2"),
        ("--gradient-accumulation-dtype auto", "--gradient-accumulation-dtype=auto"),
        ("--pipeline-split a b", "--pipeline-splits a b"),
        ("--pipeline-split=a", "--pipeline-splits=a"),
        ("--no-zero", "--no-zero-init-last-norm=true"),
        ("--zero=false", "--zero-init-last-norm=false"),
        ("--js", "--json"),
        ("--jai x", "--jail x"),
        ("--hel", "--help"),
        ("-h", "-h"),
    ],
)
def test_a_unique_prefix_stands_for_the_whole(
    spelled: Callable[[str], str], line: str, whole: str
) -> None:
    assert spelled(line) == whole


def test_spellings_of_one_option_are_no_ambiguity(spelled: Callable[[str], str]) -> None:
    assert spelled("--select-i 3") == "--select-ipus 3"  # --select-ipus, --select-ipu
    assert spelled("--weight-avg-n 3 --weight-avg-N 4") == "--weight-avg-n=3 --weight-avg-N=4"


def test_a_spelling_that_begins_others_is_meant_itself(spelled: Callable[[str], str]) -> None:
    assert spelled("--lr 1 --data x") == "--lr=1 --data=x"


@pytest.mark.parametrize(
    ("line", "attached"),
    [
        ("--lr 0.1 runs/a", "--lr=0.1 runs/a"),
        ("--lr=0.1 runs/a", "--lr=0.1 runs/a"),
        ("--lr -.5e-3 --seed -7", "--lr=-.5e-3 --seed=-7"),
        ("--name - --lr", "--name=- --lr="),
        ("--name a=b", "--name=a=b"),
        ("--lr --seed 1", "--lr= --seed=1"),
        ("--lr -x", "--lr= -x"),
        ("--augment runs/a", "--augment=true runs/a"),
        ("runs/a=b --augment=0", "runs/a=b --augment=0"),
        ("-- --grad 2", "-- --grad 2"),
        ("", ""),
    ],
)
def test_a_value_is_attached_to_its_flag(
    spelled: Callable[[str], str], line: str, attached: str
) -> None:
    assert spelled(line) == attached


def test_an_ambiguous_prefix_is_one_line_with_what_it_could_be(
    told: Callable[[str], list[str]],
) -> None:
    assert told("--pipeline 2") == [
        "option --pipeline is ambiguous: it could be "
        "--pipeline-num-parallel, --pipeline-splits, --pipeline-schedule"
    ]


def test_a_prefix_of_nearly_everything_lists_a_few(told: Callable[[str], list[str]]) -> None:
    (line,) = told("--=1")

    assert line.count(", ") == 8 and line.endswith(", …")


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        ("--learning-rte 3", ["unknown option --learning-rte; did you mean"]),
        ("--zyxwvu", ["unknown option --zyxwvu; see `convoy test --help`"]),
        ("--lrr=3", ["unknown option --lrr; did you mean --lr,"]),
        ("-lr 3", ["unknown option -lr; did you mean --lr,"]),
        ("foo", ["unexpected word 'foo'"]),
        ("foo --lrr 3 --gama=2 bar", ["unexpected word 'foo'", "--lrr", "--gama", "'bar'"]),
        ("--augment false", ["unexpected word 'false'"]),
        ("--lr 0.1", []),
    ],
)
def test_each_unknown_flag_and_word_is_told(
    told: Callable[[str], list[str]], line: str, problems: list[str]
) -> None:
    lines = told(line)

    assert len(lines) == len(problems)
    assert all(part in line for part, line in zip(problems, lines, strict=True))


def test_a_flag_that_would_drive_the_terminal_is_shown_escaped(
    told: Callable[[str], list[str]],
) -> None:
    (line,) = told("--\x1b[2J")

    assert line.isprintable()
