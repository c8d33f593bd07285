"""Lines for people, told to whoever still listens."""

import sys

from convoy.report.voice import Voice


def say(lines: list[str]) -> None:
    """Print; a reader that has gone does not spoil the exit code of a run that went well."""
    voice = Voice(sys.stdout)
    for line in lines:
        voice.say(line)
