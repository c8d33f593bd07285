"""The result of a run: `summary.json`, and the closing lines that are printed."""

import json
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from shlex import quote
from types import UnionType
from typing import Any, get_args

from convoy.errors import ConfigError, ExitCode
from convoy.events import Averaged
from convoy.files import write_atomically
from convoy.report.format import (
    describe_average,
    describe_reason,
    format_duration,
    format_percent,
    format_throughput,
)
from convoy.report.log import json_safe
from convoy.text import one_line, pluralize

PENDING = "pending"  # a phase that has not started

_EXIT_CODES = {
    "done": ExitCode.DONE,
    "preempted": ExitCode.PREEMPTED,
    "limit": ExitCode.PREEMPTED,
    "interrupted": ExitCode.INTERRUPTED,
}


@dataclass(frozen=True, kw_only=True)
class AverageSummary:
    """An average of a run's checkpoints, or the EMA of its updates."""

    path: str
    strategy: str
    checkpoints: int  # 0: of every update
    weights_sha256: str
    top1: float | None = None
    top5: float | None = None

    @classmethod
    def of(cls, averaged: Averaged | None) -> "AverageSummary | None":
        if averaged is None:
            return None
        return cls(**{item.name: vars(averaged)[item.name] for item in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class FineTuneSummary:
    """The result of the second phase of a run; its folder has its own summary."""

    path: str
    exit_reason: str  # as in `Ended`, or PENDING
    weights_sha256: str | None = None
    top1: float | None = None
    top5: float | None = None
    updates: int = 0
    epochs: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of one run; None for values the run did not reach."""

    weights_sha256: str | None = None
    top1: float | None = None
    top5: float | None = None
    updates: int
    epochs: float
    images: int
    images_per_second: float | None = None
    seconds: float
    layout: str
    exit_reason: str  # as in `Ended`
    model: str | None = None
    dataset: str | None = None
    init_path: str | None = None  # source of the initial weights; None: random
    averaged: AverageSummary | None = None
    live_average: AverageSummary | None = None
    skipped_updates: int = 0  # because of non-finite values
    bad_records: int = 0  # skipped; listed in the run folder
    fine_tune: FineTuneSummary | None = None
    peak_bytes: list[int] = field(default_factory=list)  # of each stage's process
    peak_stash: list[int] = field(default_factory=list)  # micro-batches stashed, per stage

    @property
    def final_exit_reason(self) -> str:
        """The exit reason of the run, including fine-tuning if training is done."""
        if self.exit_reason != "done" or self.fine_tune is None:
            return self.exit_reason
        return self.fine_tune.exit_reason

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES[self.final_exit_reason]

    def write(self, path: Path) -> None:
        content = json.dumps(json_safe(asdict(self)), indent=2, allow_nan=False)
        write_atomically(path, [content.encode(), b"\n"])

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Read a summary; unknown keys are ignored."""
        try:
            return cls.from_record(json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is not a valid run summary: {error}; it is written when a run ends"
            ) from error

    @classmethod
    def from_record(cls, record: object) -> "Summary":
        """Create a summary from JSON values; raise ValueError if they are invalid."""
        summary: Summary = _from_json(cls, record)
        return summary


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: its result and its folder."""

    summary: Summary
    folder: Path
    was_complete: bool = False


_FIELD_TYPES: dict[object, tuple[str, Callable[[Any], bool]]] = {
    int: ("an integer", lambda value: type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float)),
    str: ("a string", lambda value: isinstance(value, str)),
    list[int]: (
        "a list of integers",
        lambda value: isinstance(value, list) and all(type(item) is int for item in value),
    ),
}


def _from_json(cls: Any, record: object) -> Any:
    """Create a dataclass from a JSON object; raise ValueError for a field of a wrong type."""
    if not isinstance(record, dict):
        raise ValueError(f"{record!r:.80} is not an object")
    values = {}
    for item in fields(cls):
        if item.name in record:
            values[item.name] = _read_value(item, record[item.name])
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{item.name} is missing")
    return cls(**values)


def _read_value(item: Field[Any], value: object) -> object:
    if value is None and item.default is None:
        return None
    needed = get_args(item.type)[0] if isinstance(item.type, UnionType) else item.type  # not None
    if is_dataclass(needed):
        return _from_json(needed, value)
    if needed is float and value in ("nan", "inf", "-inf"):
        return float(str(value))
    text, is_valid = _FIELD_TYPES[needed]
    if not is_valid(value):
        raise ValueError(f"{item.name} is {value!r:.80}, not {text}")
    return value


def closing_lines(summary: Summary, folder: Path) -> list[str]:
    """Summarize the run: model, length, speed, accuracy, folder and next command."""
    lines = [_model_line(summary), _totals_line(summary)]
    if summary.skipped_updates:
        lines.append(f"skipped updates: {summary.skipped_updates}")
    if summary.init_path is not None:
        lines.append(f"initial weights: {one_line(summary.init_path)}")
    if accuracy := _accuracy(summary):
        lines.append(f"validation: {', '.join(accuracy)}")
    averages = (summary.live_average, summary.averaged)
    lines += [_average_line(average) for average in averages if average is not None]
    tuned = summary.fine_tune
    if tuned is not None:
        lines.append(_fine_tune_line(tuned))
    digest = (tuned and tuned.weights_sha256) or summary.weights_sha256
    if digest is not None:
        lines.append(f"weights: sha256 {digest[:12]}…")
    lines.append(f"run folder: {one_line(str(folder))}")
    verb = "validate" if summary.final_exit_reason == "done" else "resume"
    lines.append(f"next: convoy {verb} {one_line(quote(str(folder)))}")
    return lines


def _accuracy(result: Summary | AverageSummary | FineTuneSummary) -> list[str]:
    """`top-1 84.2 %` and `top-5 99.0 %`; empty without a validation."""
    if result.top1 is None or result.top5 is None:
        return []
    return [f"top-1 {format_percent(result.top1)}", f"top-5 {format_percent(result.top5)}"]


def _average_line(average: AverageSummary) -> str:
    """`average: mean of 5 checkpoints, top-1 84.9 %, top-5 99.1 %`, and its path."""
    text = describe_average(average.strategy, average.checkpoints)
    return one_line(f"average: {', '.join([text, *_accuracy(average), average.path])}")


def _fine_tune_line(tuned: FineTuneSummary) -> str:
    """`fine-tuned: 40 updates, 2 epochs, top-1 88.1 %, top-5 99.2 %`, and its path."""
    if tuned.exit_reason == PENDING:
        return "fine-tuning: pending"
    length = _format_length(tuned.updates, tuned.epochs)
    parts = ", ".join([length, *_accuracy(tuned), tuned.path])
    return one_line(f"fine-tuned: {parts}{_incomplete(tuned.exit_reason)}")


def _incomplete(exit_reason: str) -> str:
    return "" if exit_reason == "done" else f" (stopped: {describe_reason(exit_reason)})"


def _model_line(summary: Summary) -> str:
    """`trained resnet18 on shapes, 2 stages × 2 replicas`, and the reason if it ended early."""
    subject = summary.model or "a model"
    if summary.dataset is not None:
        subject += f" on {summary.dataset}"
    return one_line(f"trained {subject}, {summary.layout}{_incomplete(summary.exit_reason)}")


def _totals_line(summary: Summary) -> str:
    speed = summary.images_per_second
    throughput = "" if speed is None else f", {format_throughput(speed)}"
    return (
        f"{_format_length(summary.updates, summary.epochs)}, {pluralize(summary.images, 'image')} "
        f"in {format_duration(summary.seconds)}{throughput}"
    )


def _format_length(updates: int, epochs: float) -> str:
    """`40 updates, 2 epochs`, `1 update, 0.5 epochs`."""
    text = f"{epochs:.4g}"
    return f"{pluralize(updates, 'update')}, {text} epoch{'s' * (text != '1')}"
