"""convoy resume"""

from pathlib import Path

from convoy.cli.arguments import read_line
from convoy.cli.crew import Payload, carry_out
from convoy.cli.endings import EXIT_CODES
from convoy.cli.one_process import resume
from convoy.cli.saying import say
from convoy.config.command_line import Parser
from convoy.config.resume import resolve_resumed, settings_of_run
from convoy.launch.world import World

SAYS = """Go on with a run from its newest sound checkpoint, exactly as if it had never stopped.
Options that the weights depend on are those of the run, unless --override is given."""


def main(words: list[str]) -> int:
    """A run that is complete stays as it is."""
    line = read_line("resume RUN", words, SAYS, _add_own)
    run = Path(line.own.run)
    before = settings_of_run(run / "config.yaml")
    resolved = resolve_resumed(before, line.given, line.problems, line.own.override)
    wish = {"run": str(run), "checkpoint": line.own.checkpoint, "override": line.own.override}
    return carry_out("convoy.cli.resume:work", resolved, wish)


def work(world: World, payload: Payload) -> int:
    """One process of the run; the first one says what it came to."""
    from convoy.report.summary import closing_lines

    finished = resume(world, payload)
    if world.rank == 0:
        complete = ["already complete: nothing was changed"] if finished.was_complete else []
        say([*complete, *closing_lines(finished.summary, finished.folder)])
    return EXIT_CODES[finished.summary.ending]


def _add_own(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
    parser.add_argument("--checkpoint", metavar="DIR", help="go on from this checkpoint")
    parser.add_argument(
        "--override", action="store_true", help="allow options that change the training"
    )
