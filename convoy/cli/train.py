"""convoy train"""

from convoy.cli.arguments import add_config, read_line
from convoy.cli.crew import Payload, carry_out
from convoy.cli.endings import EXIT_CODES
from convoy.cli.one_process import start
from convoy.cli.saying import say
from convoy.config.command_line import Parser
from convoy.config.resolve import resolve
from convoy.errors import ExitCode
from convoy.launch.world import World

SAYS = "Train a network. With no option at all: ResNet-14 on the built-in shapes."


def main(words: list[str]) -> int:
    """Everything that can be refused is refused before torch is imported."""
    line = read_line("train", words, SAYS, _add_own)
    # Help has been given by now; what follows takes longer to load.
    from convoy.cli.plan import show_plan, show_splits
    from convoy.plan.splits import asks_for_list

    resolved = resolve(line.asked())
    if asks_for_list(resolved.config):
        show_splits(resolved.config, as_json=False)
        return ExitCode.DONE
    if line.own.dry_run:
        show_plan(resolved, explain=True)
        return ExitCode.DONE
    return carry_out("convoy.cli.train:work", resolved, {})


def work(world: World, payload: Payload) -> int:
    """One process of the run; the first one says what it came to."""
    from convoy.report.summary import closing_lines

    finished = start(world, payload)
    if world.rank == 0:
        say(closing_lines(finished.summary, finished.folder))
    return EXIT_CODES[finished.summary.ending]


def _add_own(parser: Parser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and who set each value, and stop"
    )
    add_config(parser)
