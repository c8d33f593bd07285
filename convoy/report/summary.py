"""What a run came to: `summary.json` for programs, a few closing lines for people."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote

from convoy.errors import ConfigError
from convoy.report.lines import plain
from convoy.report.run_folder import write_atomically
from convoy.report.voice import one_line
from convoy.report.wording import average_text, duration, percent, speed_text

PENDING = "pending"  # of a phase that has not begun


@dataclass(frozen=True, kw_only=True)
class AverageSummary:
    """What a run made of its checkpoints at its end, or of its updates on the way."""

    path: str
    strategy: str
    checkpoints: int  # 0: of every update
    weights_sha256: str
    top1: float | None = None
    top5: float | None = None


@dataclass(frozen=True, kw_only=True)
class FineTuneSummary:
    """What the second phase of a run came to; its folder has a summary of its own."""

    path: str
    exit_reason: str  # as in `Ended`, or PENDING
    weights_sha256: str | None = None
    top1: float | None = None
    top5: float | None = None
    updates: int = 0
    epochs: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of one run; None where a run did not come so far."""

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

    def write(self, path: Path) -> None:
        content = json.dumps(plain(asdict(self)), indent=2, allow_nan=False)
        write_atomically(path, [content.encode(), b"\n"])

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Keys of later versions are passed over."""
        try:
            record = json.loads(path.read_bytes())
            if not isinstance(record, dict):
                raise ValueError("not an object")
            return cls.from_record(record)
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is no summary of a run: {error}; it is written when a run ends"
            ) from error

    @classmethod
    def from_record(cls, record: dict[str, object]) -> "Summary":
        """From plain JSON values; ValueError if they are none of a summary."""
        return cls(
            weights_sha256=_text(record, "weights_sha256"),
            top1=_number(record, "top1"),
            top5=_number(record, "top5"),
            updates=_count(record, "updates"),
            epochs=_needed(record, "epochs"),
            images=_count(record, "images"),
            images_per_second=_number(record, "images_per_second"),
            seconds=_needed(record, "seconds"),
            layout=_text(record, "layout") or "",
            exit_reason=_text(record, "exit_reason") or "",
            model=_text(record, "model"),
            dataset=_text(record, "dataset"),
            init_path=_text(record, "init_path"),
            averaged=_average(record.get("averaged")),
            live_average=_average(record.get("live_average")),
            fine_tune=_fine_tune(record.get("fine_tune")),
            skipped_updates=_count(record, "skipped_updates") if "skipped_updates" in record else 0,
            bad_records=_count(record, "bad_records") if "bad_records" in record else 0,
            peak_bytes=_counts(record, "peak_bytes"),
            peak_stash=_counts(record, "peak_stash"),
        )


@dataclass(frozen=True)
class Finished:
    """A run that ended: what it came to and where it lies."""

    summary: Summary
    folder: Path
    was_complete: bool = False


def _average(record: object) -> AverageSummary | None:
    if record is None:
        return None
    if not isinstance(record, dict):
        raise ValueError(f"averaged is {record!r}, not an object")
    return AverageSummary(
        path=_text(record, "path") or "",
        strategy=_text(record, "strategy") or "",
        checkpoints=_count(record, "checkpoints"),
        weights_sha256=_text(record, "weights_sha256") or "",
        top1=_number(record, "top1"),
        top5=_number(record, "top5"),
    )


def _fine_tune(record: object) -> FineTuneSummary | None:
    if record is None:
        return None
    if not isinstance(record, dict):
        raise ValueError(f"fine_tune is {record!r}, not an object")
    return FineTuneSummary(
        path=_text(record, "path") or "",
        exit_reason=_text(record, "exit_reason") or "",
        weights_sha256=_text(record, "weights_sha256"),
        top1=_number(record, "top1"),
        top5=_number(record, "top5"),
        updates=_count(record, "updates"),
        epochs=_needed(record, "epochs"),
    )


def _counts(record: dict[str, object], name: str) -> list[int]:
    value = record.get(name, [])
    if isinstance(value, list) and all(type(one) is int for one in value):
        return value
    raise ValueError(f"{name} is {value!r}, not a list of whole numbers")


def _text(record: dict[str, object], name: str) -> str | None:
    value = record.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{name} is {value!r}, not a text")


def _number(record: dict[str, object], name: str) -> float | None:
    """A number, or one of the words that stand for what JSON cannot say."""
    value = record.get(name)
    if value is None or value in ("nan", "inf", "-inf"):
        return None if value is None else float(str(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} is {value!r}, not a number")


def _count(record: dict[str, object], name: str) -> int:
    value = _needed(record, name)
    if not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, not a whole number")
    return value


def _needed(record: dict[str, object], name: str) -> float:
    value = _number(record, name)
    if value is None:
        raise ValueError(f"{name} is missing")
    return value


def closing_lines(summary: Summary, folder: Path) -> list[str]:
    """What was trained, how far and how fast, how good, where it lies, and how to go on."""
    lines = [_subject(summary), _course(summary)]
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
    digest = _last_weights(summary)
    if digest is not None:
        lines.append(f"weights: sha256 {digest[:12]}…")
    lines.append(f"run folder: {one_line(str(folder))}")
    verb = "validate" if summary.ending == "done" else "resume"
    lines.append(f"go on: convoy {verb} {one_line(quote(str(folder)))}")
    return lines


def _accuracy(top1: float, top5: float | None) -> str:
    return f"top-1 {percent(top1)}" + (f", top-5 {percent(top5)}" if top5 is not None else "")


def _averaged(made: AverageSummary) -> str:
    """`average: mean of 5 checkpoints, top-1 84.9 %, top-5 99.1 %`, and where it lies."""
    measured = "" if made.top1 is None else f", {_accuracy(made.top1, made.top5)}"
    text = average_text(made.strategy, made.checkpoints)
    return one_line(f"average: {text}{measured}, {made.path}")


def _fine_tuned(made: FineTuneSummary) -> str:
    """`fine-tuned: 40 updates, 2 epochs, top-1 88.1 %, top-5 99.2 %`, and where it lies."""
    if made.exit_reason == PENDING:
        return "fine-tuning: still to be done"
    measured = "" if made.top1 is None else f", {_accuracy(made.top1, made.top5)}"
    early = "" if made.exit_reason == "done" else f" ({made.exit_reason}, not complete)"
    course = f"{made.updates} updates, {made.epochs:.4g} epochs"
    return one_line(f"fine-tuned: {course}{measured}, {made.path}{early}")


def _last_weights(summary: Summary) -> str | None:
    tuned = summary.fine_tune
    return tuned.weights_sha256 if tuned and tuned.weights_sha256 else summary.weights_sha256


def _subject(summary: Summary) -> str:
    """`trained resnet18 on shapes, 2 stages × 2 replicas`, and why it ended if not by itself."""
    subject = summary.model or "a model"
    if summary.dataset is not None:
        subject += f" on {summary.dataset}"
    early = "" if summary.exit_reason == "done" else f" ({summary.exit_reason}, not complete)"
    return one_line(f"trained {subject}, {summary.layout}{early}")


def _course(summary: Summary) -> str:
    speed = summary.images_per_second
    return (
        f"{summary.updates} updates, {summary.epochs:.4g} epochs, {summary.images} images "
        f"in {duration(summary.seconds)}{'' if speed is None else f', {speed_text(speed)}'}"
    )
