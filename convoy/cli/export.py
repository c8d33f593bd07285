"""convoy export"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from convoy.cli.args import Line, add_config, find_target, read_line
from convoy.config.command_line import Parser
from convoy.config.resolve import RequestedOptions, resolve
from convoy.config.settings import Problem, refuse, values_of
from convoy.config.support import unavailable
from convoy.errors import ExitCode

if TYPE_CHECKING:
    from convoy.run.foreign_weights import Exported

SAYS = """One checkpoint for other programs: the one given, or the newest sound one of a run.
Weights in names that torchvision or timm load, a torch.export program, or ONNX (needs the extra
`onnx`). What was written is read back and must answer as the network does."""

SUFFIXES = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
NAMINGS = ("torchvision", "timm", "convoy")
_USAGE = "export RUN-or-checkpoint [--batch-size N|dynamic]"
_OUTPUT = "checkpoint_output_path"
_OURS = (_OUTPUT, "micro_batch_size")  # `--output` is a file here, `--batch-size` that of the file


def main(words: list[str]) -> int:
    """Write one file and say what is in it."""
    line = read_line(_USAGE, _of_any_batch(words), SAYS, _add_own)
    own, source = line.own, Path(line.own.source)
    resolved = resolve(_asked(line, source))
    refuse(one.problem for one in unavailable(resolved.settings))  # no data are needed
    from convoy.run.foreign_weights import ExportWish, export

    given = values_of(line.given)
    output = given.get(_OUTPUT) or resolved.config.network.model + SUFFIXES[own.format]
    batch_size = given.get("micro_batch_size")
    refuse(_misfits(line, str(output)))
    wish = ExportWish(own.format, own.naming or NAMINGS[0], Path(output), batch_size, own.override)
    made = export(resolved.config, source, wish)
    row = {name: str(one) if isinstance(one, Path) else one for name, one in asdict(made).items()}
    print(json.dumps(row, indent=1) if own.json else "\n".join(_lines(made)))
    return ExitCode.DONE


def _misfits(line: Line, output: str) -> Iterator[Problem]:
    """What does not go with the format."""
    form, ending = line.own.format, SUFFIXES[line.own.format]
    if not output.endswith(ending):
        text = f"{output} is no name for --format {form}; one that ends in {ending} is"
        yield Problem("--output", text)
    if line.own.naming and form != "safetensors":
        yield Problem("--naming", f"is for --format safetensors; {form} holds no names")
    if "micro_batch_size" in line.given and form == "safetensors":
        yield Problem("--batch-size", "is for programs; --format safetensors holds weights alone")


def _of_any_batch(words: list[str]) -> list[str]:
    """`--batch-size dynamic` says what is so anyhow; everywhere else that option is a number."""
    text = "\0".join(words)
    for spelling in ("--batch-size\0dynamic", "--batch-size=dynamic"):
        text = text.replace(spelling, "")
    return [word for word in text.split("\0") if word]


def _asked(line: Line, source: Path) -> RequestedOptions:
    """A run brings its configuration; a checkpoint without one takes that of the words."""
    given = {name: one for name, one in line.given.items() if name not in _OURS}
    settings = find_target(source).settings
    if not settings:
        return replace(line.asked(), command_line=given)
    problems = line.problems
    if line.own.config or line.own.config_path:
        text = "cannot be given: a run has its own configuration"
        problems = [*problems, Problem("--config", text)]
    return RequestedOptions(given, settings, problems)


def _lines(made: "Exported") -> list[str]:
    checked = (
        "read back: every bit is there"
        if made.format == "safetensors"
        else f"read back: its answers differ by {made.difference:.1e} of the largest"
    )
    return [
        f"{made.file}  {made.format}, {made.bytes:,} bytes, out of {made.checkpoint}",
        checked,
    ]


def _add_own(parser: Parser) -> None:
    parser.add_argument("source", metavar="RUN-or-checkpoint")
    parser.add_argument("--format", choices=list(SUFFIXES), default="safetensors")
    parser.add_argument(
        "--naming", choices=NAMINGS, help="of the weights in safetensors; torchvision if unset"
    )
    parser.add_argument("--override", action="store_true", help="replace a file that is there")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    add_config(parser)
