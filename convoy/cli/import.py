"""convoy import"""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from convoy.cli.args import add_config, read_line
from convoy.config.command_line import Parser
from convoy.config.resolve import RequestedOptions, resolve
from convoy.config.settings import Setting, refuse
from convoy.config.support import unavailable
from convoy.errors import ExitCode

if TYPE_CHECKING:
    from convoy.run.foreign_weights import Imported

SAYS = """Weights of other programs as a checkpoint of ours, every name and shape checked.
WEIGHTS is a file in torchvision's or timm's naming (.safetensors, .pth, .pt, .bin), a run or
checkpoint of ours, or hf:OWNER/NAME. Another --num-classes begins with a new classifier."""

_UNSAID = {"data": Setting("generated", "convoy import")}  # leaves the classes to the model


def main(words: list[str]) -> int:
    """Write a folder that validate, export and --init-path take, and say what was read."""
    line = read_line("import WEIGHTS --model NAME", words, SAYS, _add_own)
    resolved = resolve(_of_any_data(line.asked()))
    refuse(one.problem for one in unavailable(resolved.settings))  # no data are needed
    from convoy.run.foreign_weights import import_weights

    made = import_weights(resolved, line.own.weights)
    print(json.dumps(_row(made), indent=1) if line.own.json else "\n".join(_lines(made)))
    return ExitCode.DONE


def _of_any_data(asked: RequestedOptions) -> RequestedOptions:
    return asked if "data" in asked.named else replace(asked, named={**_UNSAID, **asked.named})


def _row(made: "Imported") -> dict[str, object]:
    return {
        "weights": made.place,
        "naming": made.fitted.naming,
        "tensors": len(made.fitted.model),
        "parameters": _parameters(made),
        "notes": made.fitted.notes,
        "folder": str(made.folder),
        "weights_sha256": made.weights_sha256,
    }


def _lines(made: "Imported") -> list[str]:
    tensors = len(made.fitted.model)
    return [
        f"read {made.place}: {tensors:,} tensors, {_parameters(made):,} parameters, "
        f"names of {made.fitted.naming}",
        *made.fitted.notes,
        f"{made.folder}  sha256 {made.weights_sha256}",
        f"go on: convoy validate {made.folder}, or convoy train --init-path {made.folder}",
    ]


def _parameters(made: "Imported") -> int:
    weights = made.fitted.model.items()
    return sum(one.numel() for name, one in weights if ".running_" not in name)


def _add_own(parser: Parser) -> None:
    parser.add_argument("weights", metavar="WEIGHTS", help="a file, a run, or hf:OWNER/NAME")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    add_config(parser)
