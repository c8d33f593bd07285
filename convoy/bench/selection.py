"""The command line of the reference benchmark runner: which variants it selects, as commands ready
to run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convoy.bench.benchmarks_yml import Definitions, Variant, read_benchmarks, variants
from convoy.config.command_line import Parser, spell_out, unknown_words
from convoy.config.option import ValueType, WrongType
from convoy.config.settings import Dropped, Problem, refuse
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import printable, shown

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


# How argparse takes the words behind a flag. One without any value is found wrong later.
_TAKES: dict[str, dict[str, Any]] = {
    "nothing": {"action": "store_const", "const": []},
    "one": {"nargs": "?", "const": ""},
    "several": {"nargs": "*", "action": "extend"},
}


@dataclass(frozen=True)
class _Flag:
    """An option of the runner; one with a reason is checked and then dropped."""

    spelling: str
    takes: str
    help: str
    dropped: str = ""
    choices: tuple[str, ...] = ()
    is_number: bool = False

    def check(self, value: str) -> None:
        """WrongType says what is wrong with one value."""
        number = ValueType(float if self.is_number else str).read([value])
        if self.is_number and number <= 0:
            raise WrongType(f"must be above 0, got {value}")
        if self.choices and value not in self.choices:
            raise WrongType(f"cannot be {shown(value)}; {suggest(value, self.choices)}")


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
    parser = Parser(prog=PROGRAM, allow_abbrev=False)
    names: dict[str, str] = {}  # those argparse gives them
    for flag in _FLAGS:
        text = f"{flag.help} ({flag.dropped})" if flag.dropped else flag.help
        action = parser.add_argument(flag.spelling, help=text, **_TAKES[flag.takes])
        names[flag.spelling] = action.dest
    whole, problems = _without_values_of_switches(spell_out(words, parser))
    own, extra = parser.parse_known_args(whole)
    typed = {spelling: vars(own)[name] for spelling, name in names.items()}
    given = {
        spelling: [value] if isinstance(value, str) else value
        for spelling, value in typed.items()
        if value is not None
    }
    config = BenchConfig(
        tuple(given.get("--spec") or (USUAL_FILE,)),
        tuple(given.get("--benchmark") or ()),
        "--include-convergence" in given,
        "--allow-wandb" in given,
        "--compile-only" in given,
        tuple(
            Dropped(" ".join([flag.spelling, *given[flag.spelling]]), flag.dropped)
            for flag in _FLAGS
            if flag.dropped and flag.spelling in given
        ),
    )
    return config, [*unknown_words(extra, parser), *problems, *_wrong_values(given)]


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


def _wrong_values(given: Mapping[str, list[str]]) -> Iterator[Problem]:
    for flag in _FLAGS:
        if flag.takes == "nothing" or flag.spelling not in given:
            continue
        for value in given[flag.spelling] or [""]:
            try:
                flag.check(value)
            except WrongType as wrong:
                yield Problem(flag.spelling, str(wrong))


SHIPPED = Path(__file__).parent.parent / "benchmarks"

_NO_WANDB = "left out without --allow-wandb"
_IGNORED = "prepares a machine of the reference applications; nothing is needed here"


@dataclass(frozen=True)
class Selection:
    """The variants in the order of their benchmarks, or of the names given."""

    variants: tuple[Variant, ...]
    dropped: tuple[Dropped, ...] = ()
    notes: tuple[str, ...] = ()  # what the user should know of the choice


def select(words: list[str], environment: Mapping[str, str]) -> Selection:
    """What the words behind the runner's name mean; everything wrong with them at once."""
    config, problems = read_runner(words)
    notes: list[str] = []
    try:
        definitions = _definitions(config.spec, notes)
    except ConfigError as error:  # names cannot be looked up then
        refuse([*problems, Problem("", str(error))])
        raise
    found = {
        name: variants(benchmark, environment) for name, benchmark in definitions.benchmarks.items()
    }
    refuse([*problems, *_unknown_names(config, found, definitions.merged)])
    chosen = _chosen(config, found, notes)
    return Selection(
        tuple(_adapted(variant, config) for variant in chosen),
        (*config.dropped, *dict.fromkeys(_dropped(chosen, config))),
        tuple(notes),
    )


def shipped_files() -> list[Path]:
    """The definitions that come with the program."""
    return sorted(SHIPPED.glob("*.yml"))


def without_wandb(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command without every option that has wandb in its name, and without their values."""
    kept: list[str] = []
    before = ""  # the option whose value this word may be
    for word in words:
        if _is_wandb(word):
            before = word
            continue
        # `--wandb` itself is a switch, so what follows is another's.
        is_value = before not in ("", "--wandb") and "=" not in before and not word.startswith("-")
        before = ""
        if not is_value:
            kept.append(word)
    return tuple(kept)


def _definitions(spec: tuple[str, ...], notes: list[str]) -> Definitions:
    """All files as one; each name may come only once."""
    together = Definitions({})
    problems: list[Problem] = []
    for path in dict.fromkeys(_files(spec, notes)):
        try:
            found = read_benchmarks(path)
        except ConfigError as error:
            problems.append(Problem("", str(error)))
            continue
        for name in [name for name in found.benchmarks if name in together.benchmarks]:
            first, second = together.benchmarks[name].origin, found.benchmarks[name].origin
            problems.append(Problem(f"{second}: {name}", f"is already defined in {first}"))
        together = Definitions(
            together.benchmarks | found.benchmarks, (*together.merged, *found.merged)
        )
    refuse(problems)
    return together


def _files(spec: tuple[str, ...], notes: list[str]) -> Iterator[Path]:
    """The reference applications bring a `benchmarks.yml`; ours stand in where it is missing."""
    for name in spec:
        path = Path(name)
        if path.name == USUAL_FILE and not path.exists():
            ours = shipped_files()
            names = ", ".join(file.name for file in ours)
            notes.append(f"there is no {printable(name)}: taking those shipped, {names}")
            yield from ours
        else:
            yield path


def _unknown_names(
    config: BenchConfig, found: Mapping[str, list[Variant]], merged: tuple[str, ...]
) -> Iterator[Problem]:
    known = {*found, *(variant.name for group in found.values() for variant in group)}
    for name in config.benchmark:
        if name in merged:
            yield Problem("--benchmark", f"{name!r} is no benchmark: it has no cmd")
        elif name not in known:
            yield Problem("--benchmark", f"{name!r} is unknown; {suggest(name, known)}")


def _chosen(
    config: BenchConfig, found: Mapping[str, list[Variant]], notes: list[str]
) -> list[Variant]:
    """Those named, each once; or all, of which the convergence runs want a word of their own."""
    every = [variant for group in found.values() for variant in group]
    if config.benchmark:
        by_name = {variant.name: [variant] for variant in every} | dict(found)
        named = [variant for name in config.benchmark for variant in by_name[name]]
        return list({variant.name: variant for variant in named}.values())
    if config.include_convergence:
        return every
    left_out = {each.benchmark.name for each in every if each.benchmark.converges}
    if len(left_out) == len(found):
        raise ConfigError("all benchmarks are convergence runs; add --include-convergence")
    if left_out:
        notes.append(
            f"{len(left_out)} of {len(found)} benchmarks are convergence runs and left out; "
            "--include-convergence takes them, or their names"
        )
    return [variant for variant in every if not variant.benchmark.converges]


def _adapted(variant: Variant, config: BenchConfig) -> Variant:
    words = variant.words if config.allow_wandb else without_wandb(variant.words)
    if not config.compile_only:
        return replace(variant, words=words)
    # Nothing is measured where nothing runs.
    unmeasured = replace(variant.benchmark, metrics={}, derived={})
    return replace(variant, benchmark=unmeasured, words=(*words, "--compile-only"))


def _dropped(chosen: list[Variant], config: BenchConfig) -> Iterator[Dropped]:
    for variant in chosen:
        if not config.allow_wandb:
            yield from (Dropped(word, _NO_WANDB) for word in variant.words if _is_wandb(word))
        yield from (Dropped(key, _IGNORED) for key in variant.benchmark.ignored)


def _is_wandb(word: str) -> bool:
    return word.startswith("-") and "wandb" in word.partition("=")[0]
