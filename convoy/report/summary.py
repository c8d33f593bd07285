"""The result of a run: `summary.json` for programs, a few closing lines for people."""

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
from convoy.report.format import average_text, duration, percent, speed_text
from convoy.report.log import json_safe
from convoy.text import counted, one_line

PENDING = "pending"  # of a phase that has not begun

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
        values = asdict(averaged)
        return cls(**{item.name: values[item.name] for item in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class FineTuneSummary:
    """The result of the second phase of a run, whose folder has a summary of its own."""

    path: str
    exit_reason: str  # as in `Ended`, or PENDING
    weights_sha256: str | None = None
    top1: float | None = None
    top5: float | None = None
    updates: int = 0
    epochs: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of one run; None where the run did not get that far."""

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
    init_path: str | None = None  # whose weights it began with, if not those of its seed
    averaged: AverageSummary | None = None
    live_average: AverageSummary | None = None
    skipped_updates: int = 0  # that changed nothing, for values that are not finite
    bad_records: int = 0  # that were skipped; the run folder lists them
    fine_tune: FineTuneSummary | None = None
    peak_bytes: list[int] = field(default_factory=list)  # memory of each stage's process
    peak_stash: list[int] = field(default_factory=list)  # micro-batches each stage held at most

    @property
    def ending(self) -> str:
        """Why the last phase that was begun ended, or the one before which the run stopped."""
        if self.exit_reason != "done" or self.fine_tune is None:
            return self.exit_reason
        return self.fine_tune.exit_reason

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES[self.ending]

    def write(self, path: Path) -> None:
        content = json.dumps(json_safe(asdict(self)), indent=2, allow_nan=False)
        write_atomically(path, [content.encode(), b"\n"])

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Keys of later versions are ignored."""
        try:
            return cls.from_record(json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is no summary of a run: {error}; it is written when a run ends"
            ) from error

    @classmethod
    def from_record(cls, record: object) -> "Summary":
        """From JSON values; ValueError if they are not those of a summary."""
        summary: Summary = _from_json(cls, record)
        return summary


@dataclass(frozen=True)
class Finished:
    """A run that ended: its result and its folder."""

    summary: Summary
    folder: Path
    was_complete: bool = False


_FIELD_TYPES: dict[object, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", lambda value: type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float)),
    str: ("a text", lambda value: isinstance(value, str)),
    list[int]: (
        "a list of whole numbers",
        lambda value: isinstance(value, list) and all(type(item) is int for item in value),
    ),
}


def _from_json(cls: Any, record: object) -> Any:
    """A dataclass from a JSON object, each field checked by its type; ValueError if it is wrong."""
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
    """What was trained, how long and how fast, the accuracy, the folder, and the next command."""
    lines = [_subject(summary), _totals(summary)]
    if summary.skipped_updates:
        lines.append(f"skipped: {summary.skipped_updates} of these updates, which changed nothing")
    if summary.init_path is not None:
        lines.append(f"began with: {one_line(summary.init_path)}")
    if summary.top1 is not None:
        lines.append(f"validation: {_accuracy(summary.top1, summary.top5)}")
    averages = (summary.live_average, summary.averaged)
    lines += [_averaged(one) for one in averages if one is not None]
    if summary.fine_tune is not None:
        lines.append(_fine_tuned(summary.fine_tune))
    tuned = summary.fine_tune
    digest = (tuned and tuned.weights_sha256) or summary.weights_sha256
    if digest is not None:
        lines.append(f"weights: sha256 {digest[:12]}…")
    lines.append(f"run folder: {one_line(str(folder))}")
    verb = "validate" if summary.ending == "done" else "resume"
    lines.append(f"go on: convoy {verb} {one_line(quote(str(folder)))}")
    return lines


def _accuracy(top1: float, top5: float | None) -> str:
    return f"top-1 {percent(top1)}" + (f", top-5 {percent(top5)}" if top5 is not None else "")


def _averaged(average: AverageSummary) -> str:
    """`average: mean of 5 checkpoints, top-1 84.9 %, top-5 99.1 %`, and where it is."""
    measured = "" if average.top1 is None else f", {_accuracy(average.top1, average.top5)}"
    text = average_text(average.strategy, average.checkpoints)
    return one_line(f"average: {text}{measured}, {average.path}")


def _fine_tuned(tuned: FineTuneSummary) -> str:
    """`fine-tuned: 40 updates, 2 epochs, top-1 88.1 %, top-5 99.2 %`, and where it is."""
    if tuned.exit_reason == PENDING:
        return "fine-tuning: still to be done"
    measured = "" if tuned.top1 is None else f", {_accuracy(tuned.top1, tuned.top5)}"
    early = "" if tuned.exit_reason == "done" else f" ({tuned.exit_reason}, not complete)"
    length = _length(tuned.updates, tuned.epochs)
    return one_line(f"fine-tuned: {length}{measured}, {tuned.path}{early}")


def _subject(summary: Summary) -> str:
    """`trained resnet18 on shapes, 2 stages × 2 replicas`, and why it ended if not by itself."""
    subject = summary.model or "a model"
    if summary.dataset is not None:
        subject += f" on {summary.dataset}"
    early = "" if summary.exit_reason == "done" else f" ({summary.exit_reason}, not complete)"
    return one_line(f"trained {subject}, {summary.layout}{early}")


def _totals(summary: Summary) -> str:
    speed = summary.images_per_second
    return (
        f"{_length(summary.updates, summary.epochs)}, {counted(summary.images, 'image')} "
        f"in {duration(summary.seconds)}{'' if speed is None else f', {speed_text(speed)}'}"
    )


def _length(updates: int, epochs: float) -> str:
    """`40 updates, 2 epochs`, `1 update, 0.5 epochs`."""
    text = f"{epochs:.4g}"
    return f"{counted(updates, 'update')}, {text} epoch{'s' * (text != '1')}"
