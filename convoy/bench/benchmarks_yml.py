"""Read a `benchmarks.yml`: commands, the parameters they sweep, and the metrics of their output.

Reading is strict: all problems are reported together, each with its file and line.
"""

import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from convoy.config.option import OptionTypeError, ValueType, to_cli_words
from convoy.config.schema import DroppedWord, Problem, raise_problems
from convoy.config.yaml_reader import YamlEntry, read_yaml
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import printable, quote_shortened

MAX_VARIANTS = 1000  # more are probably a mistake

# A parameter → its values; every combination is a variant.
ParameterGrid = Mapping[str, tuple[str, ...]]

# `{{` and `}}` stand for the braces themselves; `${NAME}` is a variable of the environment.
_PLACEHOLDER = re.compile(r"\{\{|\}\}|(?<!\$)\{(\w+)\}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Metric:
    """How one number is read from the output: all matches, reduced to one."""

    name: str
    regexp: str
    reduction: str = "mean"
    skip: int = 0


@dataclass(frozen=True)
class Benchmark:
    """An entry of a `benchmarks.yml`."""

    name: str
    cmd: str
    description: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    parameters: ParameterGrid = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    output: tuple[tuple[str, str], ...] = ()  # the title of a column, and the metric it shows
    dropped_keys: tuple[DroppedWord, ...] = ()  # keys that have no effect here
    origin: str = ""  # file and line


@dataclass(frozen=True)
class Variant:
    """A benchmark with one value for each parameter: a command that can be run."""

    benchmark: Benchmark
    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]  # the variables it sets; the rest is inherited


def expand_variants(benchmark: Benchmark, environment: Mapping[str, str]) -> list[Variant]:
    """Return a variant for each combination, with environment variables expanded."""
    variables = {name: expand_variables(text, environment) for name, text in benchmark.env.items()}
    merged = {**environment, **variables}
    return [
        Variant(
            benchmark,
            "_".join([benchmark.name, *(f"{name}_{values[name]}" for name in sorted(values))]),
            tuple(expand_variables(word, merged) for word in command_words(benchmark.cmd, values)),
            variables,
        )
        for values in parameter_combinations(benchmark.parameters)
    ]


def parameter_combinations(parameters: ParameterGrid) -> list[dict[str, str]]:
    """Return the values of each variant; without parameters, one variant without values."""
    return [dict(zip(parameters, chosen, strict=True)) for chosen in product(*parameters.values())]


def command_words(cmd: str, values: Mapping[str, str]) -> list[str]:
    """Split a command as a shell would; raises ValueError on an unclosed quote."""
    return shlex.split(" ".join(fill_placeholders(cmd, values).split()))


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}` by its value."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]] if match[1] else match[0][0], text)


def placeholders(text: str) -> set[str]:
    """Return the names that `fill_placeholders` needs."""
    return {match[1] for match in _PLACEHOLDER.finditer(text) if match[1]}


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}` by their values; unset variables stay unchanged."""
    return _VARIABLE.sub(lambda match: environment.get(match[1] or match[2], match[0]), text)


REDUCTIONS = ("mean", "final", "min", "value")  # how a metric reduces its matches to one number
_KNOWN_KEYS = ("cmd", "description", "env", "parameters", "data", "output")
_MACHINE_SETUP_ONLY = "it sets up a machine for the reference applications; no setup is needed here"
_DROPPED_KEYS = {
    "location": _MACHINE_SETUP_ONLY,
    "pre_run_commands": _MACHINE_SETUP_ONLY,
    "required_apt_packages_path": _MACHINE_SETUP_ONLY,
    "requirements_file": _MACHINE_SETUP_ONLY,
    "requirements_path": _MACHINE_SETUP_ONLY,
    "derived": "derived metrics are not supported",
}


def read_benchmarks(path: Path) -> tuple[dict[str, Benchmark], list[str]]:
    """Read the benchmarks of a file in order, and the names of entries that others merge."""
    entries = read_yaml(path)
    file = _BenchmarksFile(printable(str(path)))
    benchmarks = {
        name: replace(_parse_benchmark(name, entry.value, file), origin=file.location(entry))
        for name, entry in entries.items()
        if isinstance(entry.value, dict) and "cmd" in entry.value
    }
    raise_problems(file.problems)
    if not benchmarks:
        raise ConfigError(f"{file.origin} contains no benchmark: no entry has a cmd")
    return benchmarks, [name for name in entries if name not in benchmarks]


@dataclass
class _BenchmarksFile:
    """A file being read, and its problems so far."""

    origin: str
    problems: list[Problem] = field(default_factory=list)

    def location(self, entry: YamlEntry) -> str:
        return f"{self.origin}, line {entry.line}"

    def add_problem(self, entry: YamlEntry, key: str, text: str) -> None:
        self.problems.append(Problem(f"{self.location(entry)}: {printable(key)}", text))

    @contextmanager
    def collect_problems(self, entry: YamlEntry, key: str) -> Iterator[None]:
        """Turn an `OptionTypeError` into a problem."""
        try:
            yield
        except OptionTypeError as error:
            self.add_problem(entry, key, str(error))

    def unknown_keys(
        self, values: dict[str, YamlEntry], known: Collection[str], owner: str
    ) -> None:
        for key, entry in values.items():
            if key not in known:
                self.add_problem(entry, key, f"is not a key of {owner}; {suggest(key, known)}")

    def value(self, values: dict[str, YamlEntry], key: str, default: Any) -> Any:
        """Return a value of the default's type; the default if it is missing or invalid."""
        if key in values:
            with self.collect_problems(values[key], key):
                return ValueType(type(default)).check(values[key].to_python())
        return default

    def mapping(self, values: dict[str, YamlEntry], key: str) -> dict[str, YamlEntry]:
        entry = values.get(key)
        if entry is None or entry.value is None:
            return {}
        if isinstance(entry.value, dict):
            return entry.value
        self.add_problem(entry, key, "expects `name: value` lines")
        return {}


def _parse_benchmark(name: str, values: dict[str, YamlEntry], file: _BenchmarksFile) -> Benchmark:
    file.unknown_keys(values, (*_KNOWN_KEYS, *_DROPPED_KEYS), "a benchmark")
    parameters: ParameterGrid = {}
    if swept := file.mapping(values, "parameters"):
        with file.collect_problems(values["parameters"], "parameters"):
            parameters = parse_parameters(swept)
    metrics = dict(_parse_metrics(file.mapping(values, "data"), file))
    benchmark = Benchmark(
        name,
        file.value(values, "cmd", ""),
        " ".join(str(file.value(values, "description", "")).split()),
        dict(_parse_env(file.mapping(values, "env"), file)),
        parameters,
        metrics,
        tuple(_parse_columns(values.get("output"), file)),
        tuple(DroppedWord(key, _DROPPED_KEYS[key]) for key in values if key in _DROPPED_KEYS),
    )
    with file.collect_problems(values["cmd"], "cmd"):
        _check_command(benchmark)
    return benchmark


def _check_command(benchmark: Benchmark) -> None:
    known = benchmark.parameters
    for name in sorted(placeholders(benchmark.cmd) - known.keys()):
        way_out = suggest(name, known) if known else "there are no parameters"
        raise OptionTypeError(f"uses {{{name}}}, which is not a parameter; {way_out}")
    try:
        expand_variants(benchmark, {})
    except ValueError as error:
        raise OptionTypeError(f"cannot be split into arguments: {error}") from error


def _parse_env(values: dict[str, YamlEntry], file: _BenchmarksFile) -> Iterator[tuple[str, str]]:
    for name, entry in values.items():
        with file.collect_problems(entry, name):
            yield name, scalar_text(entry)


def _parse_metrics(
    values: dict[str, YamlEntry], file: _BenchmarksFile
) -> Iterator[tuple[str, Metric]]:
    for name, entry in values.items():
        fields = file.mapping(values, name)
        file.unknown_keys(fields, ("regexp", "reduction_type", "skip"), "a metric")
        regexp = file.value(fields, "regexp", "")
        reduction = file.value(fields, "reduction_type", "mean")
        skip = file.value(fields, "skip", 0)
        if "regexp" not in fields:
            file.add_problem(entry, name, "has no regexp")
        else:
            with file.collect_problems(fields["regexp"], "regexp"):
                _check_regexp(regexp)
        if reduction not in REDUCTIONS:
            text = f"cannot be {quote_shortened(reduction)}; {suggest(reduction, REDUCTIONS)}"
            file.add_problem(fields["reduction_type"], "reduction_type", text)
        if skip < 0:
            file.add_problem(fields["skip"], "skip", f"must be at least 0, got {skip}")
        yield name, Metric(name, regexp, reduction, skip)


def _check_regexp(regexp: str) -> None:
    try:
        groups = re.compile(regexp).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionTypeError(
            f"{quote_shortened(regexp)} is not a regular expression: {error}"
        ) from error
    if groups > 1:
        raise OptionTypeError(
            f"{quote_shortened(regexp)} has {groups} groups; use one, around the number"
        )


def _parse_columns(entry: YamlEntry | None, file: _BenchmarksFile) -> Iterator[tuple[str, str]]:
    if entry is None or entry.value is None:
        return
    for row in entry.value if isinstance(entry.value, list) else [entry]:
        try:
            title, source = map(scalar_text, row.value if isinstance(row.value, list) else [])
            yield title, source
        except ValueError:
            file.add_problem(row, "output", "expects pairs [column title, metric]")


def parse_parameters(entries: dict[str, YamlEntry]) -> ParameterGrid:
    """Parse the parameters of one benchmark; raises `OptionTypeError` if they are invalid."""
    parameters = {name: _parse_values(name, entry) for name, entry in entries.items()}
    number = math.prod(map(len, parameters.values()))
    if number > MAX_VARIANTS:
        raise OptionTypeError(f"give {number:,} variants; the maximum is {MAX_VARIANTS:,}")
    variants = parameter_combinations(parameters)
    for index, values in enumerate(variants):
        if values in variants[:index]:
            listed = ", ".join(f"{name} {value}" for name, value in values.items())
            raise OptionTypeError(f"give the same variant twice: {listed}")
    return parameters


def scalar_text(entry: YamlEntry) -> str:
    """Return a single value in command-line spelling."""
    if entry.value is None:
        raise OptionTypeError("needs a value")
    if isinstance(entry.value, list | dict):
        raise OptionTypeError("expects one value, got several")
    return to_cli_words(entry.value)[0]


def _parse_values(name: str, entry: YamlEntry) -> tuple[str, ...]:
    """Parse a list of values, `1,4,16` or `[1, 4, 16]`."""
    if isinstance(entry.value, list):
        parts = [scalar_text(item) for item in entry.value]
    else:
        parts = [part.strip() for part in scalar_text(entry).split(",")]
    if not parts or "" in parts:
        raise OptionTypeError(f"give {quote_shortened(name)} an empty value")
    return tuple(parts)
