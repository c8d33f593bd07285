"""convoy validate"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.cli.args import Line, add_config, find_target, read_line
from convoy.cli.output import note, say_error
from convoy.config.command_line import Parser
from convoy.config.flags import Given
from convoy.config.resolve import RequestedOptions, resolve
from convoy.config.schema import RunConfig
from convoy.config.settings import Problem, Setting, layer, values_of
from convoy.config.support import refuse_unready
from convoy.errors import CheckpointError, ExitCode, NumericError
from convoy.report.format import percent
from convoy.run.start import inspect_data

if TYPE_CHECKING:
    from convoy.run.validation import NetworkScore

SAYS = """Top-1, top-5 and loss over the validation split, every sample exactly once.
A run stands for all of its checkpoints. A checkpoint without its run needs --model and --data.
With --random-weights there is no run: a fresh network is measured."""

Row = dict[str, Any]
Jobs = list[tuple[RunConfig, Sequence[Path | None]]]  # checkpoints; None for a fresh network

_COMPILED = "compiled"


def main(words: list[str]) -> int:
    """One line, or one JSON object, for each time a checkpoint is measured."""
    line = _compiled(read_line("validate RUN-or-checkpoint…", words, SAYS, _add_own))
    targets = [find_target(Path(path)) for path in line.own.targets]
    # Everything that can be refused is refused before anything is measured.
    jobs: Jobs = [(_config(_of_run(line, run)), paths) for paths, run in targets]
    if not targets:
        jobs = [(_config(_fresh(line)), [None])]
    rows = [row for config, paths in jobs for row in _rows(config, paths, line.own.json)]
    if line.own.json:
        print(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1))
    if any("error" in row for row in rows):
        return ExitCode.CHECKPOINT
    return _judged(rows)


def _compiled(line: Line) -> Line:
    """Whoever types --compile here means what computes the answers."""
    wish = line.given.get("compile")
    if wish is None or not wish.value:
        return line
    backend = line.given.get("backend", Setting(_COMPILED, wish.source))
    given = {**line.given, "backend": backend}
    if backend.value == _COMPILED:
        return replace(line, given=given)
    problem = Problem("--compile", f"and --backend {backend.value} are two ways; give one")
    return replace(line, problems=[*line.problems, problem])


def _judged(rows: list[Row]) -> ExitCode:
    """A loss that is no number is no measurement."""
    broken = [row for row in rows if not math.isfinite(row["loss"])]
    for row in broken:
        where = row["checkpoint"] or "random weights"
        say_error(NumericError(f"the loss of {where} is {row['loss']}: its answers are no numbers"))
    return ExitCode.NUMERIC if broken else ExitCode.DONE


def _config(asked: RequestedOptions) -> RunConfig:
    resolved = resolve(asked)
    refuse_unready(resolved)
    return inspect_data(resolved)[0].config


def _fresh(line: Line) -> RequestedOptions:
    """Without a run there is only the network as it would begin."""
    asked = line.asked()
    if values_of(layer(asked.named, asked.command_line)).get("random_weights"):
        return asked
    missing = Problem("", "name a run or a checkpoint, or give --random-weights")
    return replace(asked, problems=[*asked.problems, missing])


def _of_run(line: Line, run: Given) -> RequestedOptions:
    """A run brings its configuration; without it a checkpoint may take a named one."""
    problems = []
    if values_of(line.given).get("random_weights"):
        text = "measures a fresh network: leave it out, or name no run"
        problems.append(Problem("--random-weights", text))
    return line.asked(problems, run=run)


def _rows(config: RunConfig, paths: Sequence[Path | None], quiet: bool) -> Iterator[Row]:
    """Each result is told as soon as it is there."""
    from convoy.run.validation import validate_checkpoints

    for score in validate_checkpoints(config, paths, config.validation.repeat):
        if isinstance(score, CheckpointError):
            say_error(score)
            yield {"error": str(score)}
            continue
        for one in score.skipped:
            note(f"skipped {one}")
        row = _row(score, config.validation.latency)
        if not quiet:
            print(_text(row))
        yield row


def _row(score: "NetworkScore", with_latency: bool) -> Row:
    row = {
        "checkpoint": None if score.path is None else str(score.path),
        "weights_sha256": score.weights_sha256,
        **{name: one for name, one in asdict(score.validated).items() if one is not None},
    }
    if with_latency:
        row |= {"latency_ms": score.latency.mean, "latency_p99_ms": score.latency.p99}
    return row


def _text(row: Row) -> str:
    latency = ""
    if "latency_ms" in row:
        mean, p99 = row["latency_ms"], row["latency_p99_ms"]
        latency = f"  a batch in {mean:.2f} ms, 99 % within {p99:.2f} ms"
    return (
        f"{row['checkpoint'] or 'random weights'}  top-1 {percent(row['top1'])}  "
        f"top-5 {percent(row['top5'])}  loss {row['loss']:.4f}  "
        f"{row['samples']} samples in {row['seconds']:.1f} s{latency}"
    )


def _add_own(parser: Parser) -> None:
    parser.add_argument("targets", metavar="RUN-or-checkpoint", nargs="*")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    add_config(parser)
