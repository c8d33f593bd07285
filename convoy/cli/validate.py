"""convoy validate"""

import math
from pathlib import Path

from convoy.api.checkpoints import ValidationScore, validate_targets
from convoy.cli.args import TARGET_HELP, add_config_arguments, make_parser, parse_run_command
from convoy.cli.output import print_exception, print_json, print_note
from convoy.config.command_line import RunHelp
from convoy.errors import CheckpointError, ExitCode, NumericError
from convoy.report.format import format_percent

DESCRIPTION = """\
Compute top-1 and top-5 accuracy and loss on the validation split. Every sample counts
exactly once. For a run, all of its checkpoints are validated. A checkpoint outside a run folder
needs --model and --data. With --random-weights, a newly initialized network is
validated instead."""

_RUN_HELP = RunHelp(
    {
        "model and data": ("model", "data", "data_dir", "image_size", "dataloader_worker"),
        "validation": ("valid_batch_size", "random_weights", "backend", "latency", "repeat"),
        "devices": ("device", "precision"),
    },
    default_source="the run",
)


def main(argv: list[str]) -> int:
    """Print one line, or one JSON object, for each validation of a checkpoint."""
    usage = "convoy validate RUN-or-checkpoint… [options]"
    parser = make_parser("validate", DESCRIPTION, usage)
    parser.add_argument("targets", metavar="RUN-or-checkpoint", nargs="*", help=TARGET_HELP)
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    add_config_arguments(parser)
    line = parse_run_command(parser, argv, _RUN_HELP)
    valid: list[ValidationScore] = []
    rows = []
    for score in validate_targets([Path(path) for path in line.args.targets], line):
        if isinstance(score, CheckpointError):
            print_exception(score)
            rows.append({"error": str(score)})
            continue
        for record in score.skipped_records:
            print_note(f"skipped {record}")
        if not line.args.json:
            print(_format_score(score))
        valid.append(score)
        rows.append(score.to_json())
    if line.args.json:
        print_json(rows[0] if len(rows) == 1 else rows)
    return ExitCode.CHECKPOINT if len(valid) < len(rows) else _exit_code(valid)


def _exit_code(scores: list[ValidationScore]) -> ExitCode:
    """Report each loss that is not finite."""
    broken = [score for score in scores if not math.isfinite(score.loss)]
    for score in broken:
        name = score.checkpoint or "random weights"
        text = f"the loss of {name} is {score.loss}: the network's outputs are not finite"
        print_exception(NumericError(text))
    return ExitCode.NUMERIC if broken else ExitCode.DONE


def _format_score(score: ValidationScore) -> str:
    latency = ""
    if score.latency_ms is not None:
        mean, p99 = score.latency_ms, score.latency_p99_ms
        latency = f"  latency {mean:.2f} ms per batch, p99 {p99:.2f} ms"
    return (
        f"{score.checkpoint or 'random weights'}  top-1 {format_percent(score.top1)}  "
        f"top-5 {format_percent(score.top5)}  loss {score.loss:.4f}  "
        f"{score.samples} samples in {score.seconds:.1f} s{latency}"
    )
