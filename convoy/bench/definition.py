"""A benchmark as data: a command, the parameters it sweeps, the numbers read from its output.

`variants` makes one command of every combination of the parameters.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

Sweep = Mapping[str, tuple[str, ...]]  # a parameter → its values; every combination is meant

# `{{` and `}}` stand for the braces themselves; `${NAME}` is a variable of the environment.
_PLACE = re.compile(r"\{\{|\}\}|(?<!\$)\{(\w+)\}")
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
    aside: tuple[str, ...] = ()  # keys that prepare other machines and mean nothing here
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
    own = {name: expanded(text, environment) for name, text in benchmark.env.items()}
    seen = {**environment, **own}
    return [
        Variant(
            benchmark,
            _name(benchmark.name, values),
            values,
            tuple(expanded(word, seen) for word in split_command(benchmark.cmd, values)),
            own,
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


def split_command(cmd: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command as a shell would split it; ValueError for an open quote."""
    return shlex.split(" ".join(substituted(cmd, values).split()))


def substituted(text: str, values: Mapping[str, str]) -> str:
    """`{name}` → its value."""
    return _PLACE.sub(lambda found: values[found[1]] if found[1] else found[0][0], text)


def places(text: str) -> set[str]:
    """The names that `substituted` asks for."""
    return {found[1] for found in _PLACE.finditer(text) if found[1]}


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` → what they are set to; an unset one stays as it is."""
    return _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), text)


def _name(benchmark: str, values: Mapping[str, str]) -> str:
    return "_".join([benchmark, *(f"{name}_{values[name]}" for name in sorted(values))])
