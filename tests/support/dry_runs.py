"""The results and errors of `convoy run --dry-run`."""

import json
import shlex
from pathlib import Path
from typing import Any

from support.readme_commands import ROWS, Row
from support.run_convoy import convoy

Meaning = dict[str, Any]


def dry(line: str, *options: str | Path) -> Meaning:
    """The JSON of a dry run; `options` are the arguments of convoy before the `--`."""
    result = convoy("run", *options, "--dry-run", "--", *shlex.split(line))
    assert (result.code, result.err) == (0, "")
    meaning: Meaning = json.loads(result.out)
    return meaning


def refusals(line: str, *options: str | Path) -> list[str]:
    """The error lines of a refused command, without the prefix `convoy: `."""
    result = convoy("run", *options, "--dry-run", "--", *shlex.split(line))
    assert (result.code, result.out) == (2, "")
    return [item.removeprefix("convoy: ") for item in result.err.splitlines()]


def values(plan: Meaning) -> Meaning:
    """The value of every option, without its source."""
    return {name: item["value"] for name, item in plan["options"].items()}


def repeated(meaning: Meaning, target: str | None = None) -> Meaning:
    """The options of the canonical command; `target` is the path it works on."""
    program, _, *words = shlex.split(meaning["command"])
    assert program == "convoy"
    result = convoy("plan", "--json", *(word for word in words if word != target))
    assert (result.code, result.err) == (0, "")
    return values(json.loads(result.out))


def readme_row(*words: str) -> Row:
    """The only README command that contains these words."""
    (found,) = (row for row in ROWS if all(word in row.line for word in words))
    return found
