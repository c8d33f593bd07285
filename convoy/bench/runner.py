"""The benchmark runner's own command line: what it chooses, and what has no effect yet."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from convoy.config.command_line import Parser
from convoy.config.problems import Dropped, Problem
from convoy.config.spelling import spell_out, unknown_words
from convoy.config.user_text import shown
from convoy.config.values import Kind, WrongType
from convoy.registry import suggest

PROGRAM = "python3 -m examples_utils benchmark"
USUAL_FILE = "benchmarks.yml"

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NOT_RUN = "nothing is run yet"
_NO_RESULTS = "no results are written yet"
_NO_UPKEEP = "nothing is installed, copied or uploaded here"


@dataclass(frozen=True)
class BenchConfig:
    """Which benchmarks a command line asks for, and how."""

    spec: tuple[str, ...] = (USUAL_FILE,)
    benchmark: tuple[str, ...] = ()  # none: all
    include_convergence: bool = False
    allow_wandb: bool = False
    compile_only: bool = False
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True)
class _Flag:
    """An option of the runner; one with a reason is checked and then dropped."""

    spelling: str
    takes: Literal["nothing", "one", "several"]
    help: str
    dropped: str = ""
    choices: tuple[str, ...] = ()
    is_number: bool = False

    @property
    def dest(self) -> str:
        return self.spelling.removeprefix("--").replace("-", "_")

    def problem(self, value: str) -> str | None:
        """What is wrong with one value."""
        try:
            number = Kind(float if self.is_number else str).read([value])
        except WrongType as wrong:
            return str(wrong)
        if self.is_number and number <= 0:
            return f"must be above 0, got {value}"
        if self.choices and value not in self.choices:
            return f"cannot be {shown(value)}; {suggest(value, self.choices)}"
        return None


_FLAGS = (
    _Flag("--spec", "several", f"files of benchmarks [./{USUAL_FILE}]"),
    _Flag("--benchmark", "several", "names of benchmarks or of their variants [all]"),
    _Flag("--include-convergence", "nothing", "take those that end in _conv as well"),
    _Flag("--allow-wandb", "nothing", "leave the wandb options in the commands"),
    _Flag("--compile-only", "nothing", "add --compile-only to the commands"),
    _Flag("--additional-metrics", "nothing", "more columns", _NO_RESULTS),
    _Flag("--csv-metrics", "several", "more columns by name", _NO_RESULTS),
    _Flag("--custom-metrics-files", "several", "Python files", "their code is not run"),
    _Flag("--log-dir", "one", "folder of the results", _NO_RESULTS),
    _Flag("--logging", "one", "how much is told", _NOT_RUN, choices=_LEVELS),
    _Flag("--timeout", "one", "seconds a variant may take", _NOT_RUN, is_number=True),
    _Flag("--stop-on-error", "nothing", "stop at the first that fails", _NOT_RUN),
    _Flag("--profile", "nothing", "profile the commands", _NOT_RUN),
    _Flag("--gc-monitor", "nothing", "watch the devices", "there are no such devices"),
    _Flag("--requirements-file", "one", "packages to install", _NO_UPKEEP),
    _Flag("--no-code-sync", "nothing", "copy no code to hosts", _NO_UPKEEP),
    _Flag("--remove-dirs-after", "nothing", "clean up hosts", _NO_UPKEEP),
    _Flag("--upload-checkpoints", "several", "where to", _NO_UPKEEP, choices=("wandb", "s3")),
    _Flag("--progress-trace-period", "one", "seconds", _NOT_RUN, is_number=True),
)


def read_runner(words: list[str]) -> tuple[BenchConfig, list[Problem]]:
    """What the words behind the program's name ask for, and everything wrong with them."""
    parser = _parser()
    whole, problems = _without_values_of_switches(spell_out(words, parser))
    own, extra = parser.parse_known_args(whole)
    given = {flag.spelling: _given(flag, own) for flag in _FLAGS}
    config = BenchConfig(
        tuple(given["--spec"] or (USUAL_FILE,)),
        tuple(given["--benchmark"] or ()),
        own.include_convergence,
        own.allow_wandb,
        own.compile_only,
        tuple(
            Dropped(" ".join([flag.spelling, *values]), flag.dropped)
            for flag in _FLAGS
            if flag.dropped and (values := given[flag.spelling]) is not None
        ),
    )
    return config, [*unknown_words(extra, parser), *problems, *_wrong_values(given)]


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, allow_abbrev=False)
    for flag in _FLAGS:
        match flag.takes:
            case "nothing":
                parser.add_argument(flag.spelling, action="store_true", help=_help(flag))
            case "one":
                parser.add_argument(flag.spelling, nargs="?", const="", help=_help(flag))
            case "several":
                parser.add_argument(flag.spelling, nargs="*", action="extend", help=_help(flag))
    return parser


def _help(flag: _Flag) -> str:
    return f"{flag.help} ({flag.dropped})" if flag.dropped else flag.help


def _without_values_of_switches(words: list[str]) -> tuple[list[str], list[Problem]]:
    """argparse would stop at the first `--profile=yes`."""
    switches = {flag.spelling for flag in _FLAGS if flag.takes == "nothing"}
    kept: list[str] = []
    problems: list[Problem] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name in switches and equals:
            problems.append(Problem(name, f"takes no value, got {shown(value)}"))
        else:
            kept.append(word)
    return kept, problems


def _given(flag: _Flag, own: Namespace) -> list[str] | None:
    """The values behind a flag as typed; None where it was not typed."""
    value = vars(own)[flag.dest]
    if flag.takes == "nothing":
        return [] if value else None
    return [value] if isinstance(value, str) else value


def _wrong_values(given: dict[str, list[str] | None]) -> Iterator[Problem]:
    for flag in _FLAGS:
        values = given[flag.spelling]
        if flag.takes == "nothing" or values is None:
            continue
        for value in values or [""]:
            if (text := flag.problem(value)) is not None:
                yield Problem(flag.spelling, text)
