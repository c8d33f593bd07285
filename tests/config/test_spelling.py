"""Abbreviated flags, attached values and unknown arguments."""

from collections.abc import Callable

import pytest

from convoy.config.command_line import (
    ConfigArgumentParser,
    add_flags,
    expand_prefixes,
    unknown_argument_problems,
)
from convoy.config.flags import canonical


@pytest.fixture(scope="module")
def parser() -> ConfigArgumentParser:
    parser = ConfigArgumentParser(prog="convoy test", allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--job-dir", metavar="DIR")
    add_flags(parser, canonical())
    return parser


@pytest.fixture
def expand(parser: ConfigArgumentParser) -> Callable[[str], str]:
    return lambda line: " ".join(expand_prefixes(line.split(), parser))


@pytest.fixture
def problem_lines(parser: ConfigArgumentParser) -> Callable[[str], list[str]]:
    def parse(line: str) -> list[str]:
        extra = parser.parse_known_args(expand_prefixes(line.split(), parser))[1]
        return [str(problem) for problem in unknown_argument_problems(extra, parser)]

    return parse


@pytest.mark.parametrize(
    ("line", "expanded"),
    [
        ("--gradient-a 2", "--gradient-accumulation=2"),
        ("--gradient-accumulation-dtype auto", "--gradient-accumulation-dtype=auto"),
        ("--pipeline-split a b", "--pipeline-splits a b"),
        ("--pipeline-split=a", "--pipeline-splits=a"),
        ("--no-zero", "--no-zero-init-last-norm=true"),
        ("--zero=false", "--zero-init-last-norm=false"),
        ("--js", "--json"),
        ("--job x", "--job-dir x"),
        ("--hel", "--help"),
        ("-h", "-h"),
    ],
)
def test_a_unique_prefix_is_expanded(
    expand: Callable[[str], str], line: str, expanded: str
) -> None:
    assert expand(line) == expanded


def test_spellings_of_one_option_are_not_ambiguous(expand: Callable[[str], str]) -> None:
    assert expand("--select-i 3") == "--select-ipus 3"  # both --select-ipus and --select-ipu match
    assert expand("--weight-avg-n 3 --weight-avg-N 4") == "--weight-avg-n=3 --weight-avg-N=4"


def test_a_flag_that_is_a_prefix_of_others_is_not_ambiguous(expand: Callable[[str], str]) -> None:
    assert expand("--lr 1 --data x") == "--lr=1 --data=x"


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
    expand: Callable[[str], str], line: str, attached: str
) -> None:
    assert expand(line) == attached


def test_an_ambiguous_prefix_is_reported_with_its_expansions(
    problem_lines: Callable[[str], list[str]],
) -> None:
    assert problem_lines("--pipeline 2") == [
        "option --pipeline is ambiguous: it could be "
        "--pipeline-num-parallel, --pipeline-splits, --pipeline-schedule"
    ]


def test_a_very_short_prefix_lists_only_some_expansions(
    problem_lines: Callable[[str], list[str]],
) -> None:
    (line,) = problem_lines("--=1")

    assert line.count(", ") == 8 and line.endswith(", …")


@pytest.mark.parametrize(
    ("line", "problems"),
    [
        ("--learning-rte 3", ["unknown option --learning-rte; did you mean"]),
        ("--zyxwvu", ["unknown option --zyxwvu; see `convoy test --help`"]),
        ("--lrr=3", ["unknown option --lrr; did you mean --lr,"]),
        ("-lr 3", ["unknown option -lr; did you mean --lr,"]),
        ("foo", ["unexpected argument 'foo'"]),
        ("foo --lrr 3 --gama=2 bar", ["unexpected argument 'foo'", "--lrr", "--gama", "'bar'"]),
        ("--augment false", ["unexpected argument 'false'"]),
        ("--lr 0.1", []),
    ],
)
def test_each_unknown_argument_is_reported(
    problem_lines: Callable[[str], list[str]], line: str, problems: list[str]
) -> None:
    lines = problem_lines(line)

    assert len(lines) == len(problems)
    assert all(part in line for part, line in zip(problems, lines, strict=True))


def test_control_characters_in_a_flag_are_escaped(
    problem_lines: Callable[[str], list[str]],
) -> None:
    (line,) = problem_lines("--\x1b[2J")

    assert line.isprintable()
