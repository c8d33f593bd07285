"""convoy train"""

from convoy.cli.args import add_config, read_line
from convoy.config.command_line import Parser
from convoy.config.resolve import resolve
from convoy.errors import ExitCode

SAYS = "Train a network. With no option at all: ResNet-14 on the built-in shapes."


def main(words: list[str]) -> int:
    """Everything that can be refused is refused before torch is imported."""
    line = read_line("train", words, SAYS, _add_own)
    # Help has been printed by now; what follows takes longer to load.
    from convoy.cli.plan import show_plan, show_splits
    from convoy.plan.stages import asks_for_list
    from convoy.run.folder import RunRequest
    from convoy.run.start import start

    resolved = resolve(line.asked())
    if asks_for_list(resolved.config):
        show_splits(resolved.config, as_json=False)
        return ExitCode.DONE
    if line.own.dry_run:
        show_plan(resolved, explain=True)
        return ExitCode.DONE
    return start(RunRequest(resolved))


def _add_own(parser: Parser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and who set each value, and stop"
    )
    add_config(parser)
