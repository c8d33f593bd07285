"""Reads a `benchmarks.yml`, strictly: every fault with its file and line, all of them together.

An entry without `cmd` is no benchmark but holds what others merge.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convoy.bench.arithmetic import NoNumber, calculate
from convoy.bench.definition import Benchmark, Column, Metric, combinations, places, split_command
from convoy.bench.metrics import REDUCTIONS
from convoy.bench.sweeps import read_sweeps, scalar_text
from convoy.config.problems import Problem, refuse
from convoy.config.user_text import printable, shown
from convoy.config.values import Kind, WrongType
from convoy.config.yaml_file import Entry, read_yaml
from convoy.errors import ConfigError
from convoy.registry import suggest

_FOLLOWED = ("cmd", "description", "env", "parameters", "data", "derived", "output")
# What the reference applications need on their machines: nothing of it is needed here.
_ASIDE = (
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
    faults = _Faults(printable(str(path)))
    benchmarks = {
        name: replace(_benchmark(name, entry.value, faults), origin=faults.where(entry))
        for name, entry in entries.items()
        if isinstance(entry.value, dict) and "cmd" in entry.value
    }
    refuse(faults.problems)
    if not benchmarks:
        raise ConfigError(f"{faults.origin} holds no benchmark: no entry has a cmd")
    return Definitions(benchmarks, tuple(name for name in entries if name not in benchmarks))


@dataclass
class _Faults:
    """What is wrong with a file so far."""

    origin: str
    problems: list[Problem] = field(default_factory=list)

    def where(self, entry: Entry) -> str:
        return f"{self.origin}, line {entry.line}"

    def add(self, entry: Entry, key: str, text: str) -> None:
        self.problems.append(Problem(f"{self.where(entry)}: {printable(key)}", text))

    def unknown_keys(self, values: dict[str, Entry], known: Collection[str], of: str) -> None:
        for key, entry in values.items():
            if key not in known:
                self.add(entry, key, f"is no key of {of}; {suggest(key, known)}")

    def value(self, values: dict[str, Entry], key: str, usual: Any) -> Any:
        """A value of the type of the usual one, which stands in for a wrong one."""
        if key not in values:
            return usual
        try:
            return Kind(type(usual)).check(values[key].plain())
        except WrongType as wrong:
            self.add(values[key], key, str(wrong))
            return usual

    def mapping(self, values: dict[str, Entry], key: str) -> dict[str, Entry]:
        entry = values.get(key)
        if entry is None or entry.value is None:
            return {}
        if isinstance(entry.value, dict):
            return entry.value
        self.add(entry, key, "expects `name: value` lines")
        return {}


def _benchmark(name: str, values: dict[str, Entry], faults: _Faults) -> Benchmark:
    faults.unknown_keys(values, (*_FOLLOWED, *_ASIDE), "a benchmark")
    try:
        parameters = read_sweeps(values["parameters"]) if "parameters" in values else ()
    except WrongType as wrong:
        parameters = ()
        faults.add(values["parameters"], "parameters", str(wrong))
    metrics = dict(_metrics(faults.mapping(values, "data"), faults))
    known = [*metrics, *(key for sweep in parameters for key in sweep)]
    benchmark = Benchmark(
        name,
        faults.value(values, "cmd", ""),
        " ".join(str(faults.value(values, "description", "")).split()),
        dict(_env(faults.mapping(values, "env"), faults)),
        parameters,
        metrics,
        dict(_derived(faults.mapping(values, "derived"), known, faults)),
        tuple(_columns(values.get("output"), faults)),
        tuple(key for key in values if key in _ASIDE),
    )
    if (text := _fault_of_command(benchmark)) is not None:
        faults.add(values["cmd"], "cmd", text)
    return benchmark


def _fault_of_command(benchmark: Benchmark) -> str | None:
    for values in combinations(benchmark.parameters):
        for place in sorted(places(benchmark.cmd) - values.keys()):
            way_out = suggest(place, values) if values else "there is no parameter at all"
            return f"asks for {{{place}}}, which is no parameter; {way_out}"
        try:
            split_command(benchmark.cmd, values)
        except ValueError as error:
            return f"cannot be split into words: {error}"
    return None


def _env(values: dict[str, Entry], faults: _Faults) -> Iterator[tuple[str, str]]:
    for name, entry in values.items():
        try:
            yield name, scalar_text(entry)
        except WrongType as wrong:
            faults.add(entry, name, str(wrong))


def _metrics(values: dict[str, Entry], faults: _Faults) -> Iterator[tuple[str, Metric]]:
    for name, entry in values.items():
        fields = faults.mapping(values, name)
        faults.unknown_keys(fields, ("regexp", "reduction_type", "skip"), "a metric")
        regexp = faults.value(fields, "regexp", "")
        reduction = faults.value(fields, "reduction_type", "mean")
        skip = faults.value(fields, "skip", 0)
        if "regexp" not in fields:
            faults.add(entry, name, "has no regexp")
        elif (text := _fault_of_regexp(regexp)) is not None:
            faults.add(fields["regexp"], "regexp", text)
        if reduction not in REDUCTIONS:
            text = f"cannot be {shown(reduction)}; {suggest(reduction, REDUCTIONS)}"
            faults.add(fields["reduction_type"], "reduction_type", text)
        if skip < 0:
            faults.add(fields["skip"], "skip", f"must be at least 0, got {skip}")
        yield name, Metric(name, regexp, reduction, skip)


def _fault_of_regexp(regexp: str) -> str | None:
    try:
        groups = re.compile(regexp).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"{shown(regexp)} is no regular expression: {error}"
    return f"{shown(regexp)} has {groups} groups; one holds the number" if groups > 1 else None


def _derived(
    values: dict[str, Entry], known: list[str], faults: _Faults
) -> Iterator[tuple[str, str]]:
    """Each may use the metrics, the parameters and the derived ones before it."""
    known = list(known)
    for name, entry in values.items():
        fields = faults.mapping(values, name)
        faults.unknown_keys(fields, ("expr", "reduction_type"), "a derived metric")
        expression = faults.value(fields, "expr", "")
        strange = sorted(places(expression) - set(known))
        if "expr" not in fields:
            faults.add(entry, name, "has no expr")
        elif strange:
            text = f"uses {{{strange[0]}}}, which is not known; {suggest(strange[0], known)}"
            faults.add(fields["expr"], "expr", text)
        else:
            try:
                calculate(expression, dict.fromkeys(known, 1.0))
            except NoNumber as reason:
                faults.add(fields["expr"], "expr", str(reason))
        known.append(name)
        yield name, expression


def _columns(entry: Entry | None, faults: _Faults) -> Iterator[Column]:
    if entry is None or entry.value is None:
        return
    rows = entry.value if isinstance(entry.value, list) else [entry]
    for row in rows:
        match row.value:
            case [Entry() as title, Entry() as source]:
                try:
                    yield Column(scalar_text(title), scalar_text(source))
                    continue
                except WrongType:
                    pass
        faults.add(row, "output", "expects pairs, [title of the column, metric]")
