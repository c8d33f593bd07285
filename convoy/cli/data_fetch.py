"""convoy data fetch"""

import sys
from pathlib import Path

from convoy.cli.arguments import read_plain
from convoy.config.command_line import Parser
from convoy.errors import ExitCode

SAYS = """Download a data set from its official address; an interrupted download goes on where it
stopped, and every file is checked against its published checksum."""


def main(words: list[str]) -> int:
    """Say where it lies, and what to do with it."""
    own = read_plain("data fetch", words, SAYS, _add_own)
    from convoy.data.fetch import fetch

    home = fetch(own.name, Path(own.data_dir), on_progress=_Percent())
    print(f"{home}: complete")
    print(f"go on: convoy train --data {own.name} --model resnet20 --data-dir {own.data_dir}")
    return ExitCode.DONE


class _Percent:
    """A line for every tenth of the way."""

    def __init__(self) -> None:
        self._told = -1

    def __call__(self, here: int, total: int) -> None:
        tenth = 10 * here // total if total else 0
        if tenth != self._told:
            self._told = tenth
            print(f"{here / 1e6:.0f} of {total / 1e6:.0f} MB", file=sys.stderr)


def _add_own(parser: Parser) -> None:
    parser.add_argument("name", choices=["cifar10", "cifar100"])
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="where to put it")
