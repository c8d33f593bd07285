"""Lines for people, told to whoever still listens."""

import sys

from convoy.report.voice import Voice


def say(lines: list[str]) -> None:
    """Print; a reader that has gone does not spoil the exit code of a run that went well."""
    voice = Voice(sys.stdout)
    for line in lines:
        voice.say(line)


def say_error(error: Exception) -> None:
    """Every line of an error, marked as ours."""
    for line in str(error).splitlines():
        print(f"convoy: {line}", file=sys.stderr)


def note(text: str) -> None:
    """One line beside the result."""
    print(text, file=sys.stderr)


def unheard(*words: object) -> None:
    """In the place of either, where another process tells it."""
    del words


class Tenths:
    """A line for every tenth of a long way, beside the result."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told = 0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 0
        if tenth > self._told:
            self._told = tenth
            note(f"{self._what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
