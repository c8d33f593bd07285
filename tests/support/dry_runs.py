"""For tests: what `convoy run --dry-run` says of a command, and what it says against one."""

import json
import shlex
from pathlib import Path
from typing import Any

from support.readme_commands import ROWS, Row
from support.run_convoy import convoy

Meaning = dict[str, Any]


def dry(line: str, *own: str | Path) -> Meaning:
    """The JSON of a dry run; `own` are convoy's words in front of the `--`."""
    result = convoy("run", *own, "--dry-run", "--", *shlex.split(line))
    assert (result.code, result.err) == (0, "")
    meaning: Meaning = json.loads(result.out)
    return meaning


def refusals(line: str, *own: str | Path) -> list[str]:
    """The lines of a refusal, without the mark that they are ours."""
    result = convoy("run", *own, "--dry-run", "--", *shlex.split(line))
    assert (result.code, result.out) == (2, "")
    return [item.removeprefix("convoy: ") for item in result.err.splitlines()]


def values(plan: Meaning) -> Meaning:
    """Every option without who set it."""
    return {name: item["value"] for name, item in plan["options"].items()}


def repeated(meaning: Meaning, target: str | None = None) -> Meaning:
    """Every option as the canonical command has it, whatever it works on."""
    convoy_itself, _, *words = shlex.split(meaning["command"])
    assert convoy_itself == "convoy"
    result = convoy("plan", "--json", *(word for word in words if word != target))
    assert (result.code, result.err) == (0, "")
    return values(json.loads(result.out))


def the_row(*words: str) -> Row:
    """The one line of the READMEs with these words in it."""
    (found,) = (row for row in ROWS if all(word in row.line for word in words))
    return found
