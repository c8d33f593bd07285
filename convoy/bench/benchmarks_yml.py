"""A `benchmarks.yml`: commands, the parameters they sweep, the numbers read or derived from their
output. It is read strictly: every problem with its file and line, all of them together.
"""

import ast
import math
import operator
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path, PurePath
from statistics import fmean
from typing import Any

from convoy.config.option import ValueType, WrongType, as_words
from convoy.config.settings import Problem, refuse
from convoy.config.yaml_reader import YamlEntry, read_yaml
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import printable, shown

MOST_VARIANTS = 1000  # a slip of the keyboard makes more

Sweep = Mapping[str, tuple[str, ...]]  # a parameter → its values; every combination is meant

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
class Column:
    """A column of the results: its title, and the metric or parameter it shows."""

    title: str
    source: str


@dataclass(frozen=True)
class Benchmark:
    """An entry of a `benchmarks.yml`."""

    name: str
    cmd: str
    description: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    parameters: tuple[Sweep, ...] = ()  # one after the other; none at all: one variant
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)  # a name → an arithmetic expression
    output: tuple[Column, ...] = ()
    ignored: tuple[str, ...] = ()  # keys that prepare other machines and mean nothing here
    origin: str = ""  # file and line

    @property
    def converges(self) -> bool:
        """Whether it is a training to the end, which runs only on request."""
        return self.name.endswith("_conv")


@dataclass(frozen=True)
class Variant:
    """A benchmark with one value for each parameter: a command that can be run."""

    benchmark: Benchmark
    name: str
    values: Mapping[str, str]
    words: tuple[str, ...]
    environment: Mapping[str, str]  # what it sets; the rest is inherited


def variants(benchmark: Benchmark, environment: Mapping[str, str]) -> list[Variant]:
    """One for every combination; variables of the environment that are set are filled in."""
    variables = {name: expand_variables(text, environment) for name, text in benchmark.env.items()}
    seen = {**environment, **variables}
    return [
        Variant(
            benchmark,
            "_".join([benchmark.name, *(f"{name}_{values[name]}" for name in sorted(values))]),
            values,
            tuple(expand_variables(word, seen) for word in command_words(benchmark.cmd, values)),
            variables,
        )
        for values in combinations(benchmark.parameters)
    ]


def combinations(parameters: Iterable[Sweep]) -> list[dict[str, str]]:
    """The values of each variant; no parameter at all is one variant without values."""
    return [
        dict(zip(sweep, chosen, strict=True))
        for sweep in list(parameters) or [{}]
        for chosen in product(*sweep.values())
    ]


def command_words(cmd: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command as a shell would split it; ValueError for an open quote."""
    return shlex.split(" ".join(fill_placeholders(cmd, values).split()))


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """`{name}` → its value."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]] if found[1] else found[0][0], text)


def placeholders(text: str) -> set[str]:
    """The names that `fill_placeholders` asks for."""
    return {found[1] for found in _PLACEHOLDER.finditer(text) if found[1]}


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` → what they are set to; an unset one stays as it is."""
    return _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), text)


_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,  # not **, whose result may be complex
}


class ExpressionError(ValueError):
    """The expression has no value; says why."""


def calculate(expression: str, known: Mapping[str, float | str | None]) -> float:
    """The value of an expression over what is known by name."""
    numbers = {name: repr(_number(name, known.get(name))) for name in placeholders(expression)}
    text = fill_placeholders(expression, {name: f"({number})" for name, number in numbers.items()})
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (ArithmeticError, ValueError) as error:
        raise ExpressionError(f"{text.strip()}: {error}") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ExpressionError(f"{shown(expression)} is no arithmetic") from None
    if not math.isfinite(value):
        raise ExpressionError(f"{text.strip()} is not finite")
    return value


def _number(name: str, known: float | str | None) -> float:
    if known is None:
        raise ExpressionError(f"{name} is missing")
    try:
        number = float(known)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ExpressionError(f"{name} is {known}, no number")
    return number


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left), _value(right))
    raise SyntaxError("neither a number nor an operation")


@dataclass(frozen=True)
class MetricValue:
    """A number, or the reason why there is none."""

    value: float | None
    reason: str = ""


def measure(variant: Variant, output: str, exit_code: int) -> dict[str, MetricValue]:
    """Every metric of a variant, then those derived from them. Output: both streams together."""
    benchmark = variant.benchmark
    if exit_code != 0:
        failed = MetricValue(None, f"the command ended with exit code {exit_code}")
        return dict.fromkeys([*benchmark.metrics, *benchmark.derived], failed)
    measured = {name: read_metric(metric, output) for name, metric in benchmark.metrics.items()}
    throughput = measured.get("throughput", MetricValue(None)).value
    if throughput is not None:
        measured["throughput"] = MetricValue(throughput * mpirun_processes(variant.words))
    for name, expression in benchmark.derived.items():
        measured[name] = derive(expression, measured, variant.values)
    return measured


def read_metric(metric: Metric, output: str) -> MetricValue:
    """All matches as numbers, reduced to one; there must be more of them than are skipped."""
    values: list[float] = []
    for match in re.findall(metric.regexp, output):
        try:
            values.append(float(match))
        except ValueError:
            return MetricValue(None, f"{shown(match)} is no number")
    if not all(map(math.isfinite, values)):
        return MetricValue(None, "a value is not finite")
    if len(values) <= metric.skip:
        return MetricValue(None, f"{len(values)} values found, more than {metric.skip} are needed")
    return MetricValue(REDUCTIONS[metric.reduction](values, metric))


def derive(
    expression: str, measured: Mapping[str, MetricValue], values: Mapping[str, str]
) -> MetricValue:
    """An expression over what was measured and over the variant's parameters."""
    known = {name: metric.value for name, metric in measured.items()}
    try:
        return MetricValue(calculate(expression, {**values, **known}))
    except ExpressionError as reason:
        return MetricValue(None, str(reason))


def mpirun_processes(words: tuple[str, ...]) -> int:
    """How many independent processes a command starts, each printing its own throughput."""
    programs = [PurePath(word).name for word in words]
    if "mpirun" not in programs:
        return 1  # poprun's processes print their sum
    rest = words[programs.index("mpirun") + 1 :]
    for word, following in zip(rest, [*rest[1:], ""], strict=True):
        name, _, value = word.partition("=")
        number = value or following
        if name in ("--np", "-np", "--n", "-n", "-c") and number.isdecimal():
            return int(number)
    return 1


def _mean(values: list[float], metric: Metric) -> float:
    """Without the worst ones, which the start of each process spoils: slowest, or latest."""
    ordered = sorted(values, reverse=metric.name == "latency")
    return fmean(ordered[metric.skip :])


REDUCTIONS: dict[str, Callable[[list[float], Metric], float]] = {
    "mean": _mean,
    "final": lambda values, _: values[-1],
    "min": lambda values, _: min(values),
    "value": lambda values, _: values[0],
}


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

    @contextmanager
    def reporting(self, entry: YamlEntry, key: str) -> Iterator[None]:
        """What is wrong with a value becomes one of the problems."""
        try:
            yield
        except (WrongType, ExpressionError) as wrong:
            self.add(entry, key, str(wrong))

    def unknown_keys(self, values: dict[str, YamlEntry], known: Collection[str], of: str) -> None:
        for key, entry in values.items():
            if key not in known:
                self.add(entry, key, f"is no key of {of}; {suggest(key, known)}")

    def value(self, values: dict[str, YamlEntry], key: str, usual: Any) -> Any:
        """A value of the type of the usual one, which stands in for a wrong one."""
        if key in values:
            with self.reporting(values[key], key):
                return ValueType(type(usual)).check(values[key].plain())
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
    parameters: tuple[Sweep, ...] = ()
    if "parameters" in values:
        with file.reporting(values["parameters"], "parameters"):
            parameters = read_sweeps(values["parameters"])
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
    with file.reporting(values["cmd"], "cmd"):
        _check_command(benchmark)
    return benchmark


def _check_command(benchmark: Benchmark) -> None:
    for values in combinations(benchmark.parameters):
        for place in sorted(placeholders(benchmark.cmd) - values.keys()):
            way_out = suggest(place, values) if values else "there is no parameter at all"
            raise WrongType(f"asks for {{{place}}}, which is no parameter; {way_out}")
        try:
            command_words(benchmark.cmd, values)
        except ValueError as error:
            raise WrongType(f"cannot be split into words: {error}") from error


def _env(values: dict[str, YamlEntry], file: _BenchmarksFile) -> Iterator[tuple[str, str]]:
    for name, entry in values.items():
        with file.reporting(entry, name):
            yield name, scalar_text(entry)


def _metrics(values: dict[str, YamlEntry], file: _BenchmarksFile) -> Iterator[tuple[str, Metric]]:
    for name, entry in values.items():
        fields = file.mapping(values, name)
        file.unknown_keys(fields, ("regexp", "reduction_type", "skip"), "a metric")
        regexp = file.value(fields, "regexp", "")
        reduction = file.value(fields, "reduction_type", "mean")
        skip = file.value(fields, "skip", 0)
        if "regexp" not in fields:
            file.add(entry, name, "has no regexp")
        else:
            with file.reporting(fields["regexp"], "regexp"):
                _check_regexp(regexp)
        if reduction not in REDUCTIONS:
            text = f"cannot be {shown(reduction)}; {suggest(reduction, REDUCTIONS)}"
            file.add(fields["reduction_type"], "reduction_type", text)
        if skip < 0:
            file.add(fields["skip"], "skip", f"must be at least 0, got {skip}")
        yield name, Metric(name, regexp, reduction, skip)


def _check_regexp(regexp: str) -> None:
    try:
        groups = re.compile(regexp).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise WrongType(f"{shown(regexp)} is no regular expression: {error}") from error
    if groups > 1:
        raise WrongType(f"{shown(regexp)} has {groups} groups; one holds the number")


def _derived(
    values: dict[str, YamlEntry], known: list[str], file: _BenchmarksFile
) -> Iterator[tuple[str, str]]:
    """Each may use the metrics, the parameters and the derived ones before it."""
    for name, entry in values.items():
        fields = file.mapping(values, name)
        file.unknown_keys(fields, ("expr", "reduction_type"), "a derived metric")
        expression = file.value(fields, "expr", "")
        if "expr" not in fields:
            file.add(entry, name, "has no expr")
        else:
            with file.reporting(fields["expr"], "expr"):
                for used in sorted(placeholders(expression) - set(known)):
                    raise WrongType(f"uses {{{used}}}, which is not known; {suggest(used, known)}")
                calculate(expression, dict.fromkeys(known, 1.0))
        known.append(name)
        yield name, expression


def _columns(entry: YamlEntry | None, file: _BenchmarksFile) -> Iterator[Column]:
    if entry is None or entry.value is None:
        return
    for row in entry.value if isinstance(entry.value, list) else [entry]:
        try:
            title, source = map(scalar_text, row.value if isinstance(row.value, list) else [])
            yield Column(title, source)
        except ValueError:
            file.add(row, "output", "expects pairs, [title of the column, metric]")


def read_sweeps(entry: YamlEntry) -> tuple[Sweep, ...]:
    """The sweeps of one benchmark; WrongType says what is wrong with them."""
    sweeps = tuple(_sweeps(entry))
    number = sum(math.prod(map(len, sweep.values())) for sweep in sweeps)
    if number > MOST_VARIANTS:
        raise WrongType(f"make {number:,} variants; at most {MOST_VARIANTS:,} are read")
    found = combinations(sweeps)
    for position, values in enumerate(found):
        if values in found[:position]:
            listed = ", ".join(f"{name} {value}" for name, value in values.items())
            raise WrongType(f"give the same variant twice: {listed}")
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
            return [{name: _values(name, value) for name, value in values.items()}]
        case list() as items if items and all(isinstance(item.value, dict) for item in items):
            return [sweep for item in items for sweep in _sweeps(item)]
        case list() as items if items and all(isinstance(item.value, list) for item in items):
            return _table([item.value for item in items if isinstance(item.value, list)])
    raise WrongType("expect `name: values` lines, or rows: the names first, then the values")


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
