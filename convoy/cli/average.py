"""convoy average"""

from pathlib import Path

from convoy.cli.args import read_line
from convoy.config.command_line import Parser
from convoy.config.resolve import RequestedOptions, Resolved, resolve, settings_of_run
from convoy.config.settings import Problem, Setting
from convoy.config.support import refuse_unready
from convoy.errors import ExitCode

SAYS = """One checkpoint out of many: the mean of a run's newest, or an exponential average.
A run that was told to average does this by itself at its end."""

_STRATEGY = "weight_avg_strategy"


def main(words: list[str]) -> int:
    """Write the average beside the checkpoints it was made of, and say where."""
    line = read_line("average RUN", words, SAYS, _add_own)
    run = Path(line.own.run)
    resolved = _resolved(line.given, settings_of_run(run / "config.yaml"), line.problems)
    from convoy.run.averaging import average_checkpoints

    made = average_checkpoints(resolved.config, run / "checkpoints")
    print(f"{made.path}  {made.strategy} of {made.checkpoints} checkpoints")
    print(f"go on: convoy validate {made.path}")
    return ExitCode.DONE


def _resolved(
    given: dict[str, Setting], settings: dict[str, Setting], problems: list[Problem]
) -> Resolved:
    """A run that did not average is averaged by the mean; to ask here for none is a mistake."""
    if _STRATEGY in given and given[_STRATEGY].value == "none":
        text = "none makes no average; use mean or exponential, or leave it out"
        problems = [*problems, Problem("--weight-avg-strategy", text)]
    if _STRATEGY not in settings or settings[_STRATEGY].value == "none":
        settings = settings | {_STRATEGY: Setting("mean", "convoy average")}
    resolved = resolve(RequestedOptions(given, settings, problems))
    refuse_unready(resolved)
    return resolved


def _add_own(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
