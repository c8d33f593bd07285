"""convoy options"""

import json
from typing import Any

from convoy.cli.arguments import read_plain
from convoy.config.command_line import Parser
from convoy.config.fields import Option
from convoy.config.schema import option_table
from convoy.config.values import spelled
from convoy.errors import ExitCode

SAYS = "Every option with its meaning, type, limits and default."


def main(words: list[str]) -> int:
    """The option table."""
    own = read_plain("options", words, SAYS, _add_own)
    rows = [option_row(row) for row in option_table().values()]
    if own.json:
        print(json.dumps(rows, indent=1))
        return ExitCode.DONE
    for row in rows:
        print(f"{row['flag']:<26} {row['shown']:<12} {row['help']}")
    return ExitCode.DONE


def option_row(row: Option) -> dict[str, Any]:
    """One option as plain values."""
    return {
        "name": row.name,
        "flag": row.flag,
        "section": row.section,
        "type": str(row.kind),
        "limits": str(row.declared.limit),
        "default": row.default,
        "shown": spelled(row.default),
        "also": list(row.declared.also),
        "environment": row.declared.env,
        "help": row.declared.help,
    }


def _add_own(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print as JSON")
