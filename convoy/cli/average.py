"""convoy average"""

from pathlib import Path

from convoy.cli.arguments import read_line
from convoy.cli.run_or_checkpoint import training_checkpoints
from convoy.config.command_line import Parser
from convoy.config.resolve import Asked, resolve
from convoy.config.resume import settings_of_run
from convoy.errors import CheckpointError, ExitCode

SAYS = "One checkpoint out of many: the mean of a run's newest, or an exponential average."


def main(words: list[str]) -> int:
    """Write the average beside the checkpoints it was made of, and say where."""
    line = read_line("average RUN", words, SAYS, _add_own)
    run = Path(line.own.run)
    settings = settings_of_run(run / "config.yaml")
    config = resolve(Asked(line.given, settings, line.problems)).config
    paths = training_checkpoints(run)
    if not paths:
        raise CheckpointError(f"no checkpoint in {run / 'checkpoints'}")
    from convoy.assemble.averaging import average_checkpoints

    made = average_checkpoints(config, paths)
    print(f"{made.path}  {made.strategy} of {made.checkpoints} checkpoints")
    print(f"go on: convoy validate {made.path}")
    return ExitCode.DONE


def _add_own(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
