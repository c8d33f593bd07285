"""convoy validate"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convoy.cli.arguments import Line, read_line
from convoy.cli.run_or_checkpoint import Target, find_target
from convoy.cli.saying import say_error
from convoy.config.command_line import Parser
from convoy.config.resolve import Asked, resolve
from convoy.errors import CheckpointError, ExitCode

SAYS = """Top-1, top-5 and loss over the validation split, every sample exactly once.
A run stands for all of its checkpoints. A checkpoint without its run needs --model and --data."""


def main(words: list[str]) -> int:
    """One line, or one JSON object, for each checkpoint."""
    line = read_line("validate RUN-or-checkpoint…", words, SAYS, _add_own)
    rows = [row for path in line.own.targets for row in _scores(line, find_target(Path(path)))]
    if line.own.json:
        print(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1))
    return ExitCode.CHECKPOINT if any("error" in row for row in rows) else ExitCode.DONE


def _scores(line: Line, target: Target) -> list[dict[str, Any]]:
    config = resolve(Asked(line.given, target.settings, line.problems)).config
    from convoy.assemble.validation import validate_checkpoints
    from convoy.report.wording import percent

    rows = []
    for score in validate_checkpoints(config, target.paths):
        if isinstance(score, CheckpointError):
            say_error(score)
            rows.append({"error": str(score)})
            continue
        one = score.validated
        rows.append(
            {"checkpoint": str(score.path), "weights_sha256": score.weights_sha256, **asdict(one)}
        )
        if not line.own.json:
            print(
                f"{score.path}  top-1 {percent(one.top1)}  top-5 {percent(one.top5)}  "
                f"loss {one.loss:.4f}  {one.samples} samples in {one.seconds:.1f} s"
            )
    return rows


def _add_own(parser: Parser) -> None:
    parser.add_argument("targets", metavar="RUN-or-checkpoint", nargs="+")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
