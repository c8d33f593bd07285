"""The door of this room: what was typed → its shape, what launchers and variables ask, problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convoy.config.commands.environment import read_environment
from convoy.config.commands.launch import Launch, contradictions
from convoy.config.commands.launchers import read_launchers
from convoy.config.commands.split import Command, split
from convoy.config.problems import Dropped, Problem

_INTERPRETER = "the program runs in convoy's own interpreter"


@dataclass(frozen=True)
class Reading:
    """A command whose front is understood; `launch.environment` is for the run to have."""

    command: Command
    launch: Launch
    problems: list[Problem]


def _counts(name: str, command: Command) -> bool:
    """Variables that tell how many processes there are; a shell may have them from a launcher."""
    if name == "TF_CONFIG":
        return "--distributed" in command.words
    return name.startswith("POPDIST_NUM_")


def read_command(typed: Sequence[str], environment: Mapping[str, str]) -> Reading:
    """Understand all of a command but the words of its program, which are its dialect's.

    A shape that is none raises; what is wrong inside is gathered, to be told with the rest.
    """
    command = split(typed, environment)
    asked, problems = read_launchers(command.launchers)
    # A launcher's own value of a variable stands nearer to the program.
    exported = {name: text for name, text in environment.items() if _counts(name, command)}
    said, more = read_environment({**exported, **command.environment, **asked.environment})
    flags = [Dropped(flag, _INTERPRETER) for flag in command.interpreter[1:]]
    launch = Launch(
        said.given | asked.given,
        said.environment,
        (*said.dropped, *asked.dropped, *flags),
    )
    clashes = contradictions([asked.given, said.given])
    return Reading(command, launch, [*problems, *more, *clashes])
