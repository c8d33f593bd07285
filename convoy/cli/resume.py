"""convoy resume"""

from pathlib import Path

from convoy.cli.args import read_line
from convoy.config.command_line import Parser
from convoy.config.resolve import resolve_resumed, settings_of_run

SAYS = """Go on with a run from its newest sound checkpoint, exactly as if it had never stopped.
Options that the weights depend on are those of the run, unless --override is given."""


def main(words: list[str]) -> int:
    """A run that is complete stays as it is."""
    line = read_line("resume RUN", words, SAYS, _add_own)
    from convoy.run.folder import RunRequest
    from convoy.run.start import start

    run = Path(line.own.run)
    before = settings_of_run(run / "config.yaml")
    resolved = resolve_resumed(before, line.given, line.problems, line.own.override)
    checkpoint = Path(line.own.checkpoint) if line.own.checkpoint else None
    return start(RunRequest(resolved, run, checkpoint, line.own.override))


def _add_own(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
    parser.add_argument("--checkpoint", metavar="DIR", help="go on from this checkpoint")
    parser.add_argument(
        "--override", action="store_true", help="allow options that change the training"
    )
