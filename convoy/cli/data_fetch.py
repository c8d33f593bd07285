"""convoy data fetch"""

import sys
from contextlib import closing
from pathlib import Path

from convoy.cli.arguments import read_plain
from convoy.config.command_line import Parser
from convoy.errors import ExitCode
from convoy.report.bar import make_bar

SAYS = """Download a data set from its official address; an interrupted download goes on where it
stopped, and every file is checked against its published checksum."""


def main(words: list[str]) -> int:
    """Say where it lies, and what to do with it."""
    own = read_plain("data fetch", words, SAYS, _add_own)
    from convoy.data.fetch import fetch

    with closing(make_bar(sys.stderr, "fetching", "bytes")) as fetching:
        home = fetch(own.name, Path(own.data_dir), on_progress=fetching)
    print(f"{home}: complete")
    print(f"go on: convoy train --data {own.name} --model resnet20 --data-dir {own.data_dir}")
    return ExitCode.DONE


def _add_own(parser: Parser) -> None:
    parser.add_argument("name", choices=["cifar10", "cifar100"])
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="where to put it")
