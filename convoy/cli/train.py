"""convoy train, convoy resume"""

from pathlib import Path

from convoy.cli.args import add_config, read_line
from convoy.config.command_line import Parser
from convoy.config.resolve import resolve, resolve_resumed, settings_of_run
from convoy.errors import ExitCode

SAYS = "Train a network. With no option at all: ResNet-14 on the built-in shapes."
RESUME_SAYS = """\
Go on with a run from its newest sound checkpoint, exactly as if it had never stopped.
Options that the weights depend on are those of the run, unless --override is given."""


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


def run_resume(words: list[str]) -> int:
    """A run that is complete stays as it is."""
    line = read_line("resume RUN", words, RESUME_SAYS, _add_resume)
    from convoy.run.folder import RunRequest
    from convoy.run.start import start

    run = Path(line.own.run)
    before = settings_of_run(run / "config.yaml")
    resolved = resolve_resumed(before, line.given, line.problems, line.own.override)
    checkpoint = Path(line.own.checkpoint) if line.own.checkpoint else None
    return start(RunRequest(resolved, run, checkpoint, line.own.override))


def _add_resume(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
    parser.add_argument("--checkpoint", metavar="DIR", help="go on from this checkpoint")
    parser.add_argument(
        "--override", action="store_true", help="allow options that change the training"
    )
