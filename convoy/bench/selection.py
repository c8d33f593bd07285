"""Parse the command line of the reference benchmark runner and select the variants to run."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convoy.bench.benchmarks_yml import Benchmark, Variant, expand_variants, read_benchmarks
from convoy.config.command_line import (
    ConfigArgumentParser,
    expand_prefixes,
    unknown_argument_problems,
)
from convoy.config.option import OptionTypeError, ValueType
from convoy.config.schema import DroppedWord, Problem, raise_problems
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import printable, quote_shortened

PROGRAM = "python3 -m examples_utils benchmark"
DEFAULT_SPEC_FILE = "benchmarks.yml"

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NOT_RUN = "benchmarks are not run yet"
_NO_RESULTS = "results are not written yet"
_NO_SETUP = "nothing is installed, copied or uploaded"


@dataclass(frozen=True)
class BenchConfig:
    """The benchmarks that a command line selects, and its options."""

    spec: tuple[str, ...] = (DEFAULT_SPEC_FILE,)
    benchmark: tuple[str, ...] = ()  # empty for all
    include_convergence: bool = False
    allow_wandb: bool = False
    compile_only: bool = False
    dropped: tuple[DroppedWord, ...] = ()


# How argparse parses the values of a flag. A missing value is reported later.
_ARGPARSE_KWARGS: dict[str, dict[str, Any]] = {
    "nothing": {"action": "store_const", "const": []},
    "one": {"nargs": "?", "const": ""},
    "several": {"nargs": "*", "action": "extend"},
}


@dataclass(frozen=True)
class _RunnerFlag:
    """An option of the runner; with a reason, it is validated and then dropped."""

    spelling: str
    arity: str
    help: str
    dropped: str = ""
    choices: tuple[str, ...] = ()
    is_number: bool = False

    def check(self, value: str) -> None:
        """Raise `OptionTypeError` if a value is invalid."""
        number = ValueType(float if self.is_number else str).parse([value])
        if self.is_number and number <= 0:
            raise OptionTypeError(f"must be greater than 0, got {value}")
        if self.choices and value not in self.choices:
            raise OptionTypeError(
                f"cannot be {quote_shortened(value)}; {suggest(value, self.choices)}"
            )


_FLAGS = (
    _RunnerFlag("--spec", "several", f"benchmark files [./{DEFAULT_SPEC_FILE}]"),
    _RunnerFlag("--benchmark", "several", "names of benchmarks or variants [all]"),
    _RunnerFlag("--include-convergence", "nothing", "also select benchmarks that end in _conv"),
    _RunnerFlag("--allow-wandb", "nothing", "keep the wandb options of the commands"),
    _RunnerFlag("--compile-only", "nothing", "add --compile-only to the commands"),
    _RunnerFlag("--additional-metrics", "nothing", "more columns", _NO_RESULTS),
    _RunnerFlag("--csv-metrics", "several", "more columns by name", _NO_RESULTS),
    _RunnerFlag("--custom-metrics-files", "several", "Python files", "their code is not run"),
    _RunnerFlag("--log-dir", "one", "results folder", _NO_RESULTS),
    _RunnerFlag("--logging", "one", "log level", _NOT_RUN, choices=_LEVELS),
    _RunnerFlag("--timeout", "one", "time limit of a variant in seconds", _NOT_RUN, is_number=True),
    _RunnerFlag("--stop-on-error", "nothing", "stop at the first failure", _NOT_RUN),
    _RunnerFlag("--profile", "nothing", "profile the commands", _NOT_RUN),
    _RunnerFlag("--gc-monitor", "nothing", "monitor the devices", "there are no IPUs"),
    _RunnerFlag("--requirements-file", "one", "packages to install", _NO_SETUP),
    _RunnerFlag("--no-code-sync", "nothing", "do not copy code to hosts", _NO_SETUP),
    _RunnerFlag("--remove-dirs-after", "nothing", "clean up hosts", _NO_SETUP),
    _RunnerFlag(
        "--upload-checkpoints", "several", "upload target", _NO_SETUP, choices=("wandb", "s3")
    ),
    _RunnerFlag("--progress-trace-period", "one", "seconds", _NOT_RUN, is_number=True),
)


def parse_runner_args(words: list[str]) -> tuple[BenchConfig, list[Problem]]:
    """Parse the arguments of the runner; also returns every problem with them."""
    parser = ConfigArgumentParser(prog=PROGRAM, allow_abbrev=False)
    for flag in _FLAGS:
        text = f"{flag.help} ({flag.dropped})" if flag.dropped else flag.help
        parser.add_argument(flag.spelling, help=text, **_ARGPARSE_KWARGS[flag.arity])
    expanded, problems = _strip_switch_values(expand_prefixes(words, parser))
    args, extra = parser.parse_known_args(expanded)
    values = {
        f"--{name.replace('_', '-')}": [value] if isinstance(value, str) else value
        for name, value in vars(args).items()
        if value is not None
    }
    config = BenchConfig(
        tuple(values.get("--spec") or (DEFAULT_SPEC_FILE,)),
        tuple(values.get("--benchmark") or ()),
        "--include-convergence" in values,
        "--allow-wandb" in values,
        "--compile-only" in values,
        tuple(
            DroppedWord(" ".join([flag.spelling, *values[flag.spelling]]), flag.dropped)
            for flag in _FLAGS
            if flag.dropped and flag.spelling in values
        ),
    )
    return config, [*unknown_argument_problems(extra, parser), *problems, *_value_problems(values)]


def _strip_switch_values(words: list[str]) -> tuple[list[str], list[Problem]]:
    """Report values of switches, because argparse would stop at the first `--profile=yes`."""
    switches = {flag.spelling for flag in _FLAGS if flag.arity == "nothing"}
    remaining: list[str] = []
    problems: list[Problem] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name in switches and equals:
            problems.append(Problem(name, f"takes no value, got {quote_shortened(value)}"))
        else:
            remaining.append(word)
    return remaining, problems


def _value_problems(values: Mapping[str, list[str]]) -> Iterator[Problem]:
    for flag in _FLAGS:
        if flag.arity == "nothing" or flag.spelling not in values:
            continue
        for value in values[flag.spelling] or [""]:
            try:
                flag.check(value)
            except OptionTypeError as error:
                yield Problem(flag.spelling, str(error))


SHIPPED_DIR = Path(__file__).parent.parent / "benchmarks"

_NO_WANDB = "dropped without --allow-wandb"


@dataclass(frozen=True)
class Selection:
    """The selected variants, in the order of the file or of the given names."""

    variants: tuple[Variant, ...]
    dropped: tuple[DroppedWord, ...] = ()
    notes: tuple[str, ...] = ()  # remarks on the selection


def select_benchmarks(words: list[str], environment: Mapping[str, str]) -> Selection:
    """Select the variants of a command line; raises one error that lists all problems."""
    config, problems = parse_runner_args(words)
    notes: list[str] = []
    try:
        benchmarks, merged_names = _read_spec_files(config.spec, notes)
    except ConfigError as error:  # then names cannot be looked up
        raise_problems([*problems, Problem("", str(error))])
        raise
    variants = {
        name: expand_variants(benchmark, environment) for name, benchmark in benchmarks.items()
    }
    by_name = {variant.name: [variant] for group in variants.values() for variant in group}
    by_name |= variants
    raise_problems([*problems, *_unknown_name_problems(config, by_name, merged_names)])
    if config.benchmark:
        named = [variant for name in config.benchmark for variant in by_name[name]]
        selected = list({variant.name: variant for variant in named}.values())
    else:
        selected = _select_all(config, variants, notes)
    return Selection(
        tuple(_adapt_command(variant, config) for variant in selected),
        (*config.dropped, *dict.fromkeys(_dropped_words(selected, config))),
        tuple(notes),
    )


def strip_wandb_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """Remove every option with wandb in its name, and its values."""
    remaining: list[str] = []
    previous = ""  # the option whose value may follow
    for word in words:
        if _is_wandb(word):
            previous = word
            continue
        # `--wandb` itself is a switch and takes no value.
        is_value = (
            previous not in ("", "--wandb") and "=" not in previous and not word.startswith("-")
        )
        previous = ""
        if not is_value:
            remaining.append(word)
    return tuple(remaining)


def _read_spec_files(
    spec: tuple[str, ...], notes: list[str]
) -> tuple[dict[str, Benchmark], list[str]]:
    """Read all files into one table; each name must be unique."""
    benchmarks: dict[str, Benchmark] = {}
    merged_names: list[str] = []
    problems: list[Problem] = []
    for path in dict.fromkeys(_spec_paths(spec, notes)):
        try:
            entries, merged_entries = read_benchmarks(path)
        except ConfigError as error:
            problems.append(Problem("", str(error)))
            continue
        for name in [name for name in entries if name in benchmarks]:
            text = f"is already defined in {benchmarks[name].origin}"
            problems.append(Problem(f"{entries[name].origin}: {name}", text))
        benchmarks |= entries
        merged_names += merged_entries
    raise_problems(problems)
    return benchmarks, merged_names


def _spec_paths(spec: tuple[str, ...], notes: list[str]) -> Iterator[Path]:
    """Yield the files; if the default `benchmarks.yml` is missing, the shipped files instead."""
    for name in spec:
        path = Path(name)
        if path.name == DEFAULT_SPEC_FILE and not path.exists():
            shipped = sorted(SHIPPED_DIR.glob("*.yml"))
            names = ", ".join(file.name for file in shipped)
            notes.append(f"{printable(name)} does not exist; using the shipped files {names}")
            yield from shipped
        else:
            yield path


def _unknown_name_problems(
    config: BenchConfig, known: Collection[str], merged_names: list[str]
) -> Iterator[Problem]:
    for name in config.benchmark:
        if name in merged_names:
            yield Problem("--benchmark", f"{name!r} is not a benchmark: it has no cmd")
        elif name not in known:
            yield Problem("--benchmark", f"{name!r} is unknown; {suggest(name, known)}")


def _select_all(
    config: BenchConfig, variants: Mapping[str, list[Variant]], notes: list[str]
) -> list[Variant]:
    """Return the variants of all benchmarks; convergence runs only on request."""
    selected = {
        name: group
        for name, group in variants.items()
        if config.include_convergence or not name.endswith("_conv")
    }
    if not selected:
        raise ConfigError("all benchmarks are convergence runs; add --include-convergence")
    if excluded := len(variants) - len(selected):
        notes.append(
            f"{excluded} of {len(variants)} benchmarks are convergence runs and not selected; "
            "add --include-convergence, or list their names"
        )
    return [variant for group in selected.values() for variant in group]


def _adapt_command(variant: Variant, config: BenchConfig) -> Variant:
    words = variant.words if config.allow_wandb else strip_wandb_options(variant.words)
    extra = ("--compile-only",) if config.compile_only else ()
    return replace(variant, words=(*words, *extra))


def _dropped_words(selected: list[Variant], config: BenchConfig) -> Iterator[DroppedWord]:
    for variant in selected:
        if not config.allow_wandb:
            yield from (DroppedWord(word, _NO_WANDB) for word in variant.words if _is_wandb(word))
        yield from variant.benchmark.dropped_keys


def _is_wandb(word: str) -> bool:
    return word.startswith("-") and "wandb" in word.partition("=")[0]
