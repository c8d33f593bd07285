"""The output of a variant → its numbers. A number that cannot be had says why."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from statistics import fmean

from convoy.bench.arithmetic import NoNumber, calculate
from convoy.bench.definition import Metric, Variant
from convoy.config.user_text import shown

_PROCESSES = ("--np", "-np", "--n", "-n", "-c")  # how mpirun is told its number of processes


@dataclass(frozen=True)
class Reading:
    """A number, or the reason why there is none."""

    value: float | None
    reason: str = ""


def measure(variant: Variant, output: str, exit_code: int) -> dict[str, Reading]:
    """Every metric of a variant, then those derived from them. Output: both streams together."""
    benchmark = variant.benchmark
    if exit_code != 0:
        failed = Reading(None, f"the command ended with exit code {exit_code}")
        return dict.fromkeys([*benchmark.metrics, *benchmark.derived], failed)
    readings = {
        name: _of_all_processes(metric, output, variant)
        for name, metric in benchmark.metrics.items()
    }
    for name, expression in benchmark.derived.items():
        readings[name] = derive(expression, readings, variant.values)
    return readings


def read_metric(metric: Metric, output: str) -> Reading:
    """All matches as numbers, reduced to one; there must be more of them than are skipped."""
    values: list[float] = []
    for match in re.findall(metric.regexp, output):
        try:
            values.append(float(match))
        except ValueError:
            return Reading(None, f"{shown(match)} is no number")
    if not all(map(math.isfinite, values)):
        return Reading(None, "a value is not finite")
    if len(values) <= metric.skip:
        return Reading(None, f"{len(values)} values found, more than {metric.skip} are needed")
    return Reading(REDUCTIONS[metric.reduction](values, metric))


def derive(expression: str, readings: Mapping[str, Reading], values: Mapping[str, str]) -> Reading:
    """An expression over what was read and over the variant's parameters."""
    known = {name: reading.value for name, reading in readings.items()}
    try:
        return Reading(calculate(expression, {**values, **known}))
    except NoNumber as reason:
        return Reading(None, str(reason))


def mpirun_processes(words: tuple[str, ...]) -> int:
    """How many independent processes a command starts, each telling its own throughput."""
    programs = [PurePath(word).name for word in words]
    if "mpirun" not in programs:
        return 1  # poprun's processes tell their sum
    behind = words[programs.index("mpirun") + 1 :]
    for word, following in zip(behind, [*behind[1:], ""], strict=True):
        name, _, value = word.partition("=")
        number = value or following
        if name in _PROCESSES and number.isdecimal():
            return int(number)
    return 1


def _of_all_processes(metric: Metric, output: str, variant: Variant) -> Reading:
    reading = read_metric(metric, output)
    if metric.name != "throughput" or reading.value is None:
        return reading
    return Reading(reading.value * mpirun_processes(variant.words))


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
