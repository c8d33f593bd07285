"""Print text on stdout and stderr."""

import json
import sys
from collections.abc import Iterable

from convoy.report.stream import SafeStream


def print_result(as_json: bool, values: object, lines: Iterable[str]) -> None:
    if as_json:
        print_json(values)
    else:
        print_lines(lines)


def print_json(values: object) -> None:
    print(json.dumps(values, indent=1, default=str))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; a closed pipe does not change the exit code of a successful run."""
    stream = SafeStream(sys.stdout)
    for line in lines:
        stream.print(line)


def print_exception(error: Exception) -> None:
    for line in str(error).splitlines():
        print(f"convoy: {line}", file=sys.stderr)


def print_note(text: str) -> None:
    print(text, file=sys.stderr)
