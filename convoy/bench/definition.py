"""A benchmark as data: a command, the parameters it sweeps, and the numbers read or derived from
its output.
"""

import ast
import math
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePath
from statistics import fmean

from convoy.text import shown

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
            _name(benchmark.name, values),
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


def _name(benchmark: str, values: Mapping[str, str]) -> str:
    return "_".join([benchmark, *(f"{name}_{values[name]}" for name in sorted(values))])


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
    throughput = measured.get("throughput", MetricValue(None))
    if throughput.value is not None:
        everywhere = throughput.value * mpirun_processes(variant.words)
        measured["throughput"] = MetricValue(everywhere)
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
