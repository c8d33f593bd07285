"""convoy options, convoy completion"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from convoy.cli.args import read_plain
from convoy.config.command_line import Parser
from convoy.config.flags import canonical
from convoy.config.option import Option, spelled
from convoy.config.schema import option_table
from convoy.config.settings import Problem, refuse
from convoy.config.support import (
    WHERE,
    availability_as_text,
    json_schema,
    not_available,
    summary,
    support_as_text,
)
from convoy.errors import ConfigError, ExitCode
from convoy.registry import near_names
from convoy.text import printable

SAYS = """Every option with its default, where it works and its meaning; a name shows all of one.
An option marked * has values that are not available in this version."""

_OWN = ("--help", "--json", "--schema")


def main(words: list[str]) -> int:
    own = read_plain("options", [_without_dashes(word) for word in words], SAYS, _add_own)
    rows = _rows(own.names) if own.names else list(option_table().values())
    if own.schema and own.names:
        raise ConfigError("--schema is of all options; leave out the names")
    if own.schema:
        print(json.dumps(json_schema(), indent=1, ensure_ascii=False))
    elif own.json:
        print(json.dumps([option_row(row) for row in rows], indent=1))
    elif own.names:
        print("\n\n".join("\n".join(_in_full(row)) for row in rows))
    else:
        width = max(len(row.flag) for row in rows)
        print("\n".join([*(_line(row, width) for row in rows), "", f"{summary()} (*)"]))
    return ExitCode.DONE


def option_row(row: Option) -> dict[str, Any]:
    declared = row.declared
    return {
        "name": row.name,
        "flag": row.flag,
        "section": row.section,
        "type": str(row.kind),
        "limits": str(declared.limit),
        "default": row.default,
        "shown": spelled(row.default),
        "also": list(declared.also),
        "environment": declared.env,
        "help": declared.help,
        "reach": declared.support,
        "why": declared.why or None,
        "not_available": not_available(row),
        "ready": None if declared.ready is None else list(declared.ready),
        "free": declared.free,
    }


def _line(row: Option, width: int) -> str:
    gap = "*" if not_available(row) is not None else ""
    where = WHERE[row.declared.support] + gap
    return f"{row.flag:<{width}} {where:<8} {spelled(row.default):<12} {row.declared.help}"


def _in_full(row: Option) -> list[str]:
    declared = row.declared
    facts = {
        "default": spelled(row.default),
        "type": str(row.kind),
        "limits": str(declared.limit),
        "also": " ".join(declared.also),
        "environment": declared.env,
        "in a file": row.name,
        "works": support_as_text(row) or "here",
        "available": availability_as_text(row),
        "resumed": "may change" if declared.free else "changes need --override",
    }
    told = [f"  {name:<12} {fact}" for name, fact in facts.items() if fact]
    return [row.flag, f"  {declared.help}", *told]


def _rows(names: list[str]) -> list[Option]:
    """The options meant, under any of their spellings."""
    flags = [flag for flag in canonical().flags if flag.option]
    known = {_plain(flag.spelling): option_table()[flag.to] for flag in flags}
    refuse(_unknown(name, known) for name in names if _plain(name) not in known)
    return [known[_plain(name)] for name in names]


def _unknown(name: str, known: Iterable[str]) -> Problem:
    near = [f"--{one}" for one in near_names(_plain(name), known)]
    way_out = f"did you mean {', '.join(near)}?" if near else "`convoy options` lists them"
    return Problem("", f"unknown option {printable(name)}; {way_out}")


def _plain(spelling: str) -> str:
    return spelling.removeprefix("--").replace("_", "-")


def _without_dashes(word: str) -> str:
    """`--lr` is a name here, unless it is one of our own options or the beginning of one."""
    if any(own.startswith(word.partition("=")[0]) for own in _OWN):
        return word
    return word.removeprefix("--")


def _add_own(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="show all of this one")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of configurations, for editors"
    )


COMPLETION_SAYS = """\
Print a script that completes verbs, options and their values in a shell. Turn it on with
  bash   convoy completion bash > ~/.local/share/bash-completion/completions/convoy
  zsh    convoy completion zsh > ~/.zfunc/_convoy
  fish   convoy completion fish > ~/.config/fish/completions/convoy.fish
and begin a new shell. In zsh, ~/.zfunc must be in $fpath before compinit is called."""

SCRIPTS = Path(__file__).parent.parent / "completions"
FILES = {"bash": "convoy.bash", "zsh": "_convoy", "fish": "convoy.fish"}


def run_completion(words: list[str]) -> int:
    """The script as it was shipped: it holds every word, and starts no Python."""
    own = read_plain("completion", words, COMPLETION_SAYS, _add_completion)
    print((SCRIPTS / FILES[own.shell]).read_text(encoding="utf-8"), end="")
    return ExitCode.DONE


def _add_completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=list(FILES))
