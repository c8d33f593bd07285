"""convoy data show"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from convoy.cli.arguments import Line, add_config, read_line
from convoy.cli.crew import settle
from convoy.cli.found_data import with_found_data
from convoy.cli.saying import say
from convoy.config.availability import refuse_unready_data
from convoy.config.command_line import Parser
from convoy.config.layers import values_of
from convoy.config.problems import Problem
from convoy.config.resolve import resolve
from convoy.errors import ExitCode

SAYS = """A picture of samples exactly as the network gets them, but for the normalization: a row
for each sample, a column for each epoch from --epoch on (1 is the first). With --split
validation: samples from anywhere in that split, each with its label beneath."""

_OUTPUT = "checkpoint_output_path"  # `--output` is a file here
_USUAL = "samples.png"


def main(words: list[str]) -> int:
    """Write one file and say what is in it."""
    line = read_line("data show [--output FILE.png]", words, SAYS, _add_own)
    asked, own = line.asked(), line.own
    given = {name: one for name, one in line.given.items() if name not in (_OUTPUT, "epoch")}
    problems = [*asked.problems, *_misfits(line)]
    resolved = resolve(replace(asked, command_line=given, problems=problems))
    refuse_unready_data(resolved)
    from convoy.assemble.sheet import SheetWish, write_sheet

    first = int(values_of(line.given).get("epoch") or 1) - 1
    wish = SheetWish(_output(line), own.rows, own.columns, first, own.split, own.override)
    sheet = write_sheet(settle(with_found_data(resolved).resolved, 1).config, wish)
    columns = len(sheet.rows[0].cells)
    of_epochs = f", {columns} epoch{'s' * (columns > 1)}" if sheet.heads else ""
    count = len(sheet.rows) if sheet.heads else sum(len(row.cells) for row in sheet.rows)
    samples = f"{count} sample{'s' * (count > 1)}"
    say([f"{wish.output}: {samples} of {resolved.config.data.data}, {own.split} split{of_epochs}"])
    return ExitCode.DONE


def _output(line: Line) -> Path:
    return Path(values_of(line.given).get(_OUTPUT) or _USUAL)


def _misfits(line: Line) -> Iterator[Problem]:
    for flag, count in (("--rows", line.own.rows), ("--columns", line.own.columns)):
        if count < 1:
            yield Problem(flag, f"must be at least 1, got {count}")
    epoch = values_of(line.given).get("epoch")
    if epoch is not None and epoch % 1:
        yield Problem("--epoch", f"must be a whole number here, got {epoch:g}")
    if _output(line).suffix.lower() != ".png":
        yield Problem("--output", f"{_output(line)} is no name for a picture; end it in .png")


def _add_own(parser: Parser) -> None:
    parser.add_argument("--rows", type=int, default=8, metavar="N", help="of images [8]")
    parser.add_argument("--columns", type=int, default=8, metavar="N", help="of images [8]")
    parser.add_argument("--split", choices=["train", "validation"], default="train")
    parser.add_argument("--override", action="store_true", help="replace a file that is there")
    add_config(parser)
