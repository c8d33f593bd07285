"""Reads a `benchmarks.yml` strictly: every problem with its file and line, all of them together."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from convoy.bench.definition import (
    REDUCTIONS,
    Benchmark,
    Column,
    ExpressionError,
    Metric,
    Sweep,
    calculate,
    combinations,
    command_words,
    placeholders,
)
from convoy.config.settings import Problem, refuse
from convoy.config.values import ValueType, WrongType, as_words
from convoy.config.yaml_reader import YamlEntry, read_yaml
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import printable, shown

MOST_VARIANTS = 1000  # a slip of the keyboard makes more

_READ = ("cmd", "description", "env", "parameters", "data", "derived", "output")
# What the reference applications need on their machines: nothing of it is needed here.
_IGNORED = (
    "location",
    "pre_run_commands",
    "required_apt_packages_path",
    "requirements_file",
    "requirements_path",
)


@dataclass(frozen=True)
class Definitions:
    """What a file holds: its benchmarks, and the names of entries that others merge."""

    benchmarks: dict[str, Benchmark]
    merged: tuple[str, ...] = ()


def read_benchmarks(path: Path) -> Definitions:
    """The benchmarks of a file in their order."""
    entries = read_yaml(path)
    file = _BenchmarksFile(printable(str(path)))
    benchmarks = {
        name: replace(_benchmark(name, entry.value, file), origin=file.where(entry))
        for name, entry in entries.items()
        if isinstance(entry.value, dict) and "cmd" in entry.value
    }
    refuse(file.problems)
    if not benchmarks:
        raise ConfigError(f"{file.origin} holds no benchmark: no entry has a cmd")
    return Definitions(benchmarks, tuple(name for name in entries if name not in benchmarks))


@dataclass
class _BenchmarksFile:
    """A file that is read, and what is wrong with it so far."""

    origin: str
    problems: list[Problem] = field(default_factory=list)

    def where(self, entry: YamlEntry) -> str:
        return f"{self.origin}, line {entry.line}"

    def add(self, entry: YamlEntry, key: str, text: str) -> None:
        self.problems.append(Problem(f"{self.where(entry)}: {printable(key)}", text))

    def unknown_keys(self, values: dict[str, YamlEntry], known: Collection[str], of: str) -> None:
        for key, entry in values.items():
            if key not in known:
                self.add(entry, key, f"is no key of {of}; {suggest(key, known)}")

    def value(self, values: dict[str, YamlEntry], key: str, usual: Any) -> Any:
        """A value of the type of the usual one, which stands in for a wrong one."""
        if key not in values:
            return usual
        try:
            return ValueType(type(usual)).check(values[key].plain())
        except WrongType as wrong:
            self.add(values[key], key, str(wrong))
            return usual

    def mapping(self, values: dict[str, YamlEntry], key: str) -> dict[str, YamlEntry]:
        entry = values.get(key)
        if entry is None or entry.value is None:
            return {}
        if isinstance(entry.value, dict):
            return entry.value
        self.add(entry, key, "expects `name: value` lines")
        return {}


def _benchmark(name: str, values: dict[str, YamlEntry], file: _BenchmarksFile) -> Benchmark:
    file.unknown_keys(values, (*_READ, *_IGNORED), "a benchmark")
    try:
        parameters = read_sweeps(values["parameters"]) if "parameters" in values else ()
    except WrongType as wrong:
        parameters = ()
        file.add(values["parameters"], "parameters", str(wrong))
    metrics = dict(_metrics(file.mapping(values, "data"), file))
    known = [*metrics, *(key for sweep in parameters for key in sweep)]
    benchmark = Benchmark(
        name,
        file.value(values, "cmd", ""),
        " ".join(str(file.value(values, "description", "")).split()),
        dict(_env(file.mapping(values, "env"), file)),
        parameters,
        metrics,
        dict(_derived(file.mapping(values, "derived"), known, file)),
        tuple(_columns(values.get("output"), file)),
        tuple(key for key in values if key in _IGNORED),
    )
    if (text := _problem_of_command(benchmark)) is not None:
        file.add(values["cmd"], "cmd", text)
    return benchmark


def _problem_of_command(benchmark: Benchmark) -> str | None:
    for values in combinations(benchmark.parameters):
        for place in sorted(placeholders(benchmark.cmd) - values.keys()):
            way_out = suggest(place, values) if values else "there is no parameter at all"
            return f"asks for {{{place}}}, which is no parameter; {way_out}"
        try:
            command_words(benchmark.cmd, values)
        except ValueError as error:
            return f"cannot be split into words: {error}"
    return None


def _env(values: dict[str, YamlEntry], file: _BenchmarksFile) -> Iterator[tuple[str, str]]:
    for name, entry in values.items():
        try:
            yield name, scalar_text(entry)
        except WrongType as wrong:
            file.add(entry, name, str(wrong))


def _metrics(values: dict[str, YamlEntry], file: _BenchmarksFile) -> Iterator[tuple[str, Metric]]:
    for name, entry in values.items():
        fields = file.mapping(values, name)
        file.unknown_keys(fields, ("regexp", "reduction_type", "skip"), "a metric")
        regexp = file.value(fields, "regexp", "")
        reduction = file.value(fields, "reduction_type", "mean")
        skip = file.value(fields, "skip", 0)
        if "regexp" not in fields:
            file.add(entry, name, "has no regexp")
        elif (text := _problem_of_regexp(regexp)) is not None:
            file.add(fields["regexp"], "regexp", text)
        if reduction not in REDUCTIONS:
            text = f"cannot be {shown(reduction)}; {suggest(reduction, REDUCTIONS)}"
            file.add(fields["reduction_type"], "reduction_type", text)
        if skip < 0:
            file.add(fields["skip"], "skip", f"must be at least 0, got {skip}")
        yield name, Metric(name, regexp, reduction, skip)


def _problem_of_regexp(regexp: str) -> str | None:
    try:
        groups = re.compile(regexp).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"{shown(regexp)} is no regular expression: {error}"
    return f"{shown(regexp)} has {groups} groups; one holds the number" if groups > 1 else None


def _derived(
    values: dict[str, YamlEntry], known: list[str], file: _BenchmarksFile
) -> Iterator[tuple[str, str]]:
    """Each may use the metrics, the parameters and the derived ones before it."""
    known = list(known)
    for name, entry in values.items():
        fields = file.mapping(values, name)
        file.unknown_keys(fields, ("expr", "reduction_type"), "a derived metric")
        expression = file.value(fields, "expr", "")
        strange = sorted(placeholders(expression) - set(known))
        if "expr" not in fields:
            file.add(entry, name, "has no expr")
        elif strange:
            text = f"uses {{{strange[0]}}}, which is not known; {suggest(strange[0], known)}"
            file.add(fields["expr"], "expr", text)
        else:
            try:
                calculate(expression, dict.fromkeys(known, 1.0))
            except ExpressionError as reason:
                file.add(fields["expr"], "expr", str(reason))
        known.append(name)
        yield name, expression


def _columns(entry: YamlEntry | None, file: _BenchmarksFile) -> Iterator[Column]:
    if entry is None or entry.value is None:
        return
    rows = entry.value if isinstance(entry.value, list) else [entry]
    for row in rows:
        match row.value:
            case [YamlEntry() as title, YamlEntry() as source]:
                try:
                    yield Column(scalar_text(title), scalar_text(source))
                    continue
                except WrongType:
                    pass
        file.add(row, "output", "expects pairs, [title of the column, metric]")


def read_sweeps(entry: YamlEntry) -> tuple[Sweep, ...]:
    """The sweeps of one benchmark; WrongType says what is wrong with them."""
    sweeps = tuple(_sweeps(entry))
    number = sum(prod(map(len, sweep.values())) for sweep in sweeps)
    if number > MOST_VARIANTS:
        raise WrongType(f"make {number:,} variants; at most {MOST_VARIANTS:,} are read")
    found = combinations(sweeps)
    for position, values in enumerate(found):
        if values in found[:position]:
            raise WrongType(f"give the same variant twice: {_listed(values)}")
    return sweeps


def scalar_text(entry: YamlEntry) -> str:
    """A single value as a command line spells it."""
    if entry.value is None:
        raise WrongType("needs a value")
    if isinstance(entry.value, list | dict):
        raise WrongType("expects one value, got several")
    return as_words(entry.value)[0]


def _sweeps(entry: YamlEntry) -> list[Sweep]:
    match entry.value:
        case None:
            return []
        case dict() as values:
            return [_sweep(values)]
        case list() as items if items and all(isinstance(item.value, dict) for item in items):
            return [_sweep(item.value) for item in items if isinstance(item.value, dict)]
        case list() as items if items and all(isinstance(item.value, list) for item in items):
            return _table([item.value for item in items if isinstance(item.value, list)])
    raise WrongType("expect `name: values` lines, or rows: the names first, then the values")


def _sweep(values: dict[str, YamlEntry]) -> Sweep:
    return {name: _values(name, entry) for name, entry in values.items()}


def _values(name: str, entry: YamlEntry) -> tuple[str, ...]:
    """`1,4,16` and `[1, 4, 16]` are the same list."""
    if isinstance(entry.value, list):
        parts = [scalar_text(item) for item in entry.value]
    else:
        parts = [part.strip() for part in scalar_text(entry).split(",")]
    if not parts or "" in parts:
        raise WrongType(f"give {shown(name)} an empty value")
    return tuple(parts)


def _table(rows: list[list[YamlEntry]]) -> list[Sweep]:
    names, *lines = [[scalar_text(item) for item in row] for row in rows]
    if not lines:
        raise WrongType("have a row of names and no row of values")
    for line in lines:
        if len(line) != len(names):
            raise WrongType(f"have a row of {len(line)} values for {len(names)} names")
    return [{name: (value,) for name, value in zip(names, line, strict=True)} for line in lines]


def _listed(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
