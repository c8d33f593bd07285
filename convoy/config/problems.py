"""Problems are gathered, so that a user hears all of them at once."""

from collections.abc import Iterable
from dataclasses import dataclass

from convoy.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in the words the user typed."""

    subject: str  # an option as spelled, a key with its file and line
    text: str

    def __str__(self) -> str:
        return f"{self.subject} {self.text}" if self.subject else self.text


@dataclass(frozen=True)
class Dropped:
    """A word that nothing comes of, as typed, and why."""

    word: str
    reason: str


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one error that lists every problem; pass if there is none."""
    listed = list(dict.fromkeys(str(problem) for problem in problems))
    if listed:
        raise ConfigError("\n".join(listed))
