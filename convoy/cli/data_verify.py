"""convoy data verify"""

import json
import sys
from contextlib import closing
from pathlib import Path

from convoy.cli.arguments import read_plain
from convoy.cli.saying import note, say
from convoy.config.command_line import Parser
from convoy.errors import ConfigError, ExitCode
from convoy.launch.cores import available_cores
from convoy.report.bar import make_bar

SAYS = """Read everything of a data set, checksums and every pixel, and list each bad record with
its file, offset and reason. Class folders, TFRecord and WebDataset shards, CIFAR. Ends with 0 when
all is good, with 3 otherwise."""


def main(words: list[str]) -> int:
    """All faults of a split as soon as it is read."""
    own = read_plain("data verify", words, SAYS, _add_own)
    if own.workers is not None and own.workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {own.workers}")
    from convoy.data.hearing import Hearing
    from convoy.data.verify.verification import Scope, verify

    scope = Scope(
        folder=Path(own.folder),
        split=None if own.split == "all" else own.split,
        workers=own.workers or len(available_cores()),
        decoded=own.decode,
    )
    splits = []
    with (
        closing(make_bar(sys.stderr, "reading", "bytes")) as reading,
        closing(make_bar(sys.stderr, "reading", "records")) as working,
    ):
        for report in verify(scope, Hearing(note, reading, working)):
            splits.append(report)
            say([] if own.json else report.lines())
    good = all(report.is_good for report in splits)
    if own.json:
        told = {report.split: report.as_json() for report in splits}
        print(json.dumps({"folder": own.folder, "good": good, "splits": told}, indent=1))
    return ExitCode.DONE if good else ExitCode.DATA


def _add_own(parser: Parser) -> None:
    add = parser.add_argument
    add("folder", metavar="DIR", help="where the data is")
    add("--split", default="all", choices=["train", "validation", "all"], help="[all]")
    add("--workers", type=int, metavar="N", help="threads; unset: one a core")
    add("--no-decode", dest="decode", action="store_false", help="headers of images only")
    add("--json", action="store_true", help="print the result as JSON")
