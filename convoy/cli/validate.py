"""convoy validate"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.cli.args import (
    ParsedCommand,
    add_config_arguments,
    find_checkpoints,
    make_parser,
    parse_run_command,
)
from convoy.cli.output import print_exception, print_json, print_note
from convoy.config.resolve import refuse_unavailable, resolve
from convoy.config.schema import (
    Problem,
    RequestedOptions,
    RunConfig,
    Setting,
    Settings,
    setting_values,
)
from convoy.errors import CheckpointError, ExitCode, NumericError
from convoy.report.format import format_percent
from convoy.run.start import inspect_data

if TYPE_CHECKING:
    from convoy.run.validation import NetworkScore

DESCRIPTION = """\
Compute top-1, top-5 and loss on the validation split, with every sample exactly once.
For a run, all of its checkpoints are validated. A checkpoint without its run needs --model and
--data. With --random-weights, a newly initialized network is validated instead."""

Row = dict[str, Any]
Job = tuple[RunConfig, Sequence[Path | None]]  # checkpoints; None for random weights

_COMPILED = "compiled"


def main(words: list[str]) -> int:
    """Print one line, or one JSON object, for each validation of a checkpoint."""
    usage = "convoy validate RUN-or-checkpoint… [options]"
    parser = make_parser("validate", DESCRIPTION, usage)
    parser.add_argument("targets", metavar="RUN-or-checkpoint", nargs="*")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    add_config_arguments(parser)
    line = _apply_compile_flag(parse_run_command(parser, words))
    targets = [find_checkpoints(Path(path)) for path in line.args.targets]
    # Report every problem before the first validation.
    jobs: list[Job] = [(_resolve_config(_run_request(line, run)), paths) for paths, run in targets]
    if not targets:
        jobs = [(_resolve_config(_fresh_network_request(line)), [None])]
    rows = [row for config, paths in jobs for row in _rows(config, paths, line.args.json)]
    if line.args.json:
        print_json(rows[0] if len(rows) == 1 else rows)
    if any("error" in row for row in rows):
        return ExitCode.CHECKPOINT
    return _exit_code(rows)


def _apply_compile_flag(line: ParsedCommand) -> ParsedCommand:
    """Treat --compile as --backend compiled."""
    compile_setting = line.settings.get("compile")
    if compile_setting is None or not compile_setting.value:
        return line
    backend = line.settings.get("backend", Setting(_COMPILED, compile_setting.source))
    if backend.value == _COMPILED:
        return replace(line, settings={**line.settings, "backend": backend})
    problem = Problem("--compile", f"and --backend {backend.value} are mutually exclusive; use one")
    return replace(line, problems=[*line.problems, problem])


def _exit_code(rows: list[Row]) -> ExitCode:
    """Report each loss that is not finite."""
    broken = [row for row in rows if not math.isfinite(row["loss"])]
    for row in broken:
        name = row["checkpoint"] or "random weights"
        text = f"the loss of {name} is {row['loss']}: the network's outputs are not finite"
        print_exception(NumericError(text))
    return ExitCode.NUMERIC if broken else ExitCode.DONE


def _resolve_config(request: RequestedOptions) -> RunConfig:
    resolved = resolve(request)
    refuse_unavailable(resolved)
    return inspect_data(resolved)[0].config


def _fresh_network_request(line: ParsedCommand) -> RequestedOptions:
    """Return the request without a run, which requires --random-weights."""
    request = line.to_request()
    if setting_values(request.named_config | request.command_line).get("random_weights"):
        return request
    missing = Problem("", "give a run or a checkpoint, or --random-weights")
    return replace(request, problems=[*request.problems, missing])


def _run_request(line: ParsedCommand, run: Settings) -> RequestedOptions:
    """Return the request for a run; a checkpoint without its run may use a named configuration."""
    problems = []
    if setting_values(line.settings).get("random_weights"):
        text = "validates a new network; leave it out, or leave out the run"
        problems.append(Problem("--random-weights", text))
    return line.to_request(problems, run_settings=run)


def _rows(config: RunConfig, paths: Sequence[Path | None], quiet: bool) -> Iterator[Row]:
    """Validate, and print each result as soon as it is known."""
    from convoy.run.validation import validate_checkpoints

    for score in validate_checkpoints(config, paths, config.validation.repeat):
        if isinstance(score, CheckpointError):
            print_exception(score)
            yield {"error": str(score)}
            continue
        for record in score.skipped:
            print_note(f"skipped {record}")
        row = _row(score, config.validation.latency)
        if not quiet:
            print(_format_row(row))
        yield row


def _row(score: "NetworkScore", with_latency: bool) -> Row:
    row = {
        "checkpoint": None if score.path is None else str(score.path),
        "weights_sha256": score.weights_sha256,
        **{name: value for name, value in asdict(score.validated).items() if value is not None},
    }
    if with_latency:
        row |= {"latency_ms": score.latency.mean, "latency_p99_ms": score.latency.p99}
    return row


def _format_row(row: Row) -> str:
    latency = ""
    if "latency_ms" in row:
        mean, p99 = row["latency_ms"], row["latency_p99_ms"]
        latency = f"  latency {mean:.2f} ms per batch, p99 {p99:.2f} ms"
    return (
        f"{row['checkpoint'] or 'random weights'}  top-1 {format_percent(row['top1'])}  "
        f"top-5 {format_percent(row['top5'])}  loss {row['loss']:.4f}  "
        f"{row['samples']} samples in {row['seconds']:.1f} s{latency}"
    )
