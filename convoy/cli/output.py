"""Lines for people on stdout and stderr."""

import json
import sys
from collections.abc import Iterable

from convoy.report.stream import SafeStream


def show(as_json: bool, values: object, lines: Iterable[str]) -> None:
    if as_json:
        print(json.dumps(values, indent=1, default=str))
    else:
        say(lines)


def say(lines: Iterable[str]) -> None:
    """Print; a reader that has gone does not spoil the exit code of a run that went well."""
    stream = SafeStream(sys.stdout)
    for line in lines:
        stream.print(line)


def say_error(error: Exception) -> None:
    for line in str(error).splitlines():
        print(f"convoy: {line}", file=sys.stderr)


def note(text: str) -> None:
    print(text, file=sys.stderr)
