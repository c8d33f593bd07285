"""convoy options, convoy completion"""

import json
from pathlib import Path
from typing import Any

from convoy.cli.args import make_parser, parse_command
from convoy.cli.output import print_json
from convoy.config.flags import canonical
from convoy.config.option import Option, format_value
from convoy.config.option_docs import (
    SUPPORT_LABELS,
    availability_as_text,
    default_as_text,
    json_schema,
    options_summary,
    support_as_text,
    unavailable_choices,
)
from convoy.config.schema import Problem, option_table, raise_problems
from convoy.errors import ConfigError, ExitCode
from convoy.registry import near_names
from convoy.text import printable

DESCRIPTION = """\
List all options with the devices they work on, their defaults and their help. With names
of options, show their details; with other words, search names and help texts. An option marked *
has values that are not available in this version."""

_FLAGS = ("--help", "--json", "--schema")


def main(argv: list[str]) -> int:
    parser = make_parser("options", DESCRIPTION)
    add = parser.add_argument
    add("words", nargs="*", metavar="WORD", help="an option, or a word to search for")
    add("--json", action="store_true", help="print as JSON")
    add(
        "--schema", action="store_true", help="print the JSON Schema of configurations, for editors"
    )
    args = parse_command(parser, [_strip_dashes(word) for word in argv])
    if args.schema and args.words:
        raise ConfigError("--schema covers all options; remove the names")
    named = _named_options(args.words)
    rows = named or _search(args.words)
    if args.schema:
        print(json.dumps(json_schema(), indent=1, ensure_ascii=False))
    elif args.json:
        print_json([option_row(row) for row in rows])
    elif named:
        print("\n\n".join("\n".join(_format_details(row)) for row in named))
    else:
        width = max(len(row.shown_flag) for row in rows)
        footer = [] if args.words else ["", f"{options_summary()} (*)"]
        print("\n".join([*(_line(row, width) for row in rows), *footer]))
    return ExitCode.DONE


def option_row(row: Option) -> dict[str, Any]:
    return {
        "name": row.name,
        "flag": row.flag,
        "section": row.section,
        "type": str(row.value_type),
        "limits": str(row.limit),
        "default": row.default,
        "default_text": format_value(row.default),
        "aliases": list(row.aliases),
        "environment": row.env_var,
        "help": row.help,
        "support": row.support,
        "support_reason": row.no_counterpart or row.cuda_effect or None,
        "unavailable_values": unavailable_choices(row),
        "available_values": None if row.available_values is None else list(row.available_values),
        "changeable_on_resume": row.changeable_on_resume,
    }


def _line(row: Option, width: int) -> str:
    default, described = format_value(row.default), default_as_text(row)
    text = row.help if described == default else f"{row.help} [{described}]"
    where = SUPPORT_LABELS[row.support] + "*" * (unavailable_choices(row) is not None)
    return f"{row.shown_flag:<{width}} {where:<15} {default:<12} {text}"


def _format_details(row: Option) -> list[str]:
    facts = {
        "default": default_as_text(row),
        "type": str(row.value_type),
        "limits": str(row.limit),
        "also": " ".join(name for name in (row.flag, *row.aliases) if name != row.shown_flag),
        "environment": row.env_var,
        "YAML key": row.name,
        "device": support_as_text(row) or "any",
        "available": availability_as_text(row),
        "on resume": _resume_text(row),
    }
    lines = [f"  {name:<12} {fact}" for name, fact in facts.items() if fact]
    return [row.shown_flag, f"  {row.help}", *lines]


def _resume_text(row: Option) -> str:
    if row.fixed_reason:
        return f"cannot be set: {row.fixed_reason}"
    return "can be changed" if row.changeable_on_resume else "changes need --override"


def _named_options(words: list[str]) -> list[Option]:
    """The options with these names, in any of their spellings; none if a word is not a name."""
    flags = [flag for flag in canonical().flags if flag.option]
    known = {_plain(flag.spelling): option_table()[flag.option_name] for flag in flags}
    rows = [known.get(_plain(word)) for word in words]
    return [row for row in rows if row] if all(rows) else []


def _search(words: list[str]) -> list[Option]:
    """The options whose names or help texts contain one of the words; all without words."""
    rows = list(option_table().values())
    matches = {word: [row for row in rows if _matches(row, word)] for word in words}
    raise_problems(_unknown(word) for word in words if not matches[word])
    return [row for row in rows if not words or any(row in matches[word] for word in words)]


def _matches(row: Option, word: str) -> bool:
    texts = (row.flag, *row.aliases, row.help)
    return any(_plain(word).casefold() in text.casefold() for text in texts)


def _unknown(word: str) -> Problem:
    near = [f"--{name}" for name in near_names(_plain(word), map(_plain, option_table()))]
    hint = f"did you mean {', '.join(near)}?" if near else "`convoy options` lists all options"
    return Problem("", f"no option matches {printable(word)}; {hint}")


def _plain(spelling: str) -> str:
    return spelling.removeprefix("--").replace("_", "-")


def _strip_dashes(word: str) -> str:
    """`--lr` is a name here, unless it is an option of this verb or a prefix of one."""
    if any(flag.startswith(word.partition("=")[0]) for flag in _FLAGS):
        return word
    return word.removeprefix("--")


COMPLETION_DESCRIPTION = """\
Print a script that completes commands, options and their values in a shell. Install it
with
  bash   convoy completion bash > ~/.local/share/bash-completion/completions/convoy
  zsh    convoy completion zsh > ~/.zfunc/_convoy
  fish   convoy completion fish > ~/.config/fish/completions/convoy.fish
and start a new shell. In zsh, ~/.zfunc must be in $fpath before compinit is called."""

SCRIPTS = Path(__file__).parent.parent / "completions"
FILES = {"bash": "convoy.bash", "zsh": "_convoy", "fish": "convoy.fish"}


def run_completion(argv: list[str]) -> int:
    """Print the shipped script; it contains all option names and starts no Python."""
    parser = make_parser("completion", COMPLETION_DESCRIPTION)
    parser.add_argument("shell", metavar="SHELL", choices=list(FILES), help=", ".join(FILES))
    args = parse_command(parser, argv)
    print((SCRIPTS / FILES[args.shell]).read_text(encoding="utf-8"), end="")
    return ExitCode.DONE
