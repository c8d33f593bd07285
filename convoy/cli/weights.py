"""convoy import, export, average: weights in and out, and averages of checkpoints"""

from dataclasses import asdict, replace
from pathlib import Path

from convoy.api.checkpoints import (
    FORMAT_SUFFIXES,
    NAMINGS,
    ExportArguments,
    average_run,
    export_checkpoint,
    resolve_without_data,
)
from convoy.cli.args import add_config_arguments, parse_run_command
from convoy.cli.output import print_result
from convoy.config.command_line import ConfigArgumentParser
from convoy.config.schema import Setting, setting_values
from convoy.errors import ExitCode
from convoy.text import pluralize

IMPORT_DESCRIPTION = """\
Import weights as a convoy checkpoint; every name and shape is checked.
WEIGHTS is a file with torchvision or timm names (.safetensors, .pth, .pt, .bin), a convoy run or
checkpoint, or hf:OWNER/NAME. If --num-classes differs, the classifier is newly initialized."""

_IMPORT_DEFAULTS = {"data": Setting("generated", "convoy import")}  # the model sets the classes


def run_import(words: list[str]) -> int:
    line = parse_run_command("import WEIGHTS --model NAME", words, IMPORT_DESCRIPTION, _add_import)
    request = line.to_request()
    resolved = resolve_without_data(
        replace(request, named_config={**_IMPORT_DEFAULTS, **request.named_config})
    )
    from convoy.run.import_export import import_weights

    imported = import_weights(resolved, line.args.weights)
    naming, tensors, notes = imported.fitted.naming, imported.fitted.model, imported.fitted.notes
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if ".running_" not in name)
    row = {
        "weights": imported.source,
        "naming": naming,
        "tensors": len(tensors),
        "parameters": parameters,
        "notes": notes,
        "folder": imported.folder,
        "weights_sha256": imported.weights_sha256,
    }
    size = f"{len(tensors):,} tensors, {parameters:,} parameters"
    lines = [
        f"read {imported.source}: {size}, {naming} names",
        *notes,
        f"{imported.folder}  sha256 {imported.weights_sha256}",
        f"next: convoy validate {imported.folder}, or convoy train --init-path {imported.folder}",
    ]
    print_result(line.args.json, row, lines)
    return ExitCode.DONE


def _add_import(parser: ConfigArgumentParser) -> None:
    parser.add_argument("weights", metavar="WEIGHTS", help="file, run, checkpoint or hf:OWNER/NAME")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_config_arguments(parser)


EXPORT_DESCRIPTION = """\
Export a checkpoint, or the newest valid checkpoint of a run: as weights with the names of
torchvision or timm, as a torch.export program, or as ONNX (needs the extra `onnx`). The written
file is read back, and its outputs must match those of the network."""

_USAGE = "export RUN-or-checkpoint [--batch-size N|dynamic]"
_OUTPUT = "checkpoint_output_path"
# `--output` is a file here, and `--batch-size` the batch size of the exported program.
_EXPORT_OPTIONS = (_OUTPUT, "micro_batch_size")


def run_export(words: list[str]) -> int:
    line = parse_run_command(
        _USAGE, _strip_dynamic_batch_size(words), EXPORT_DESCRIPTION, _add_export
    )
    args, values = line.args, setting_values(line.settings)
    settings = {
        name: setting for name, setting in line.settings.items() if name not in _EXPORT_OPTIONS
    }
    arguments = ExportArguments(
        args.format, args.naming, values.get(_OUTPUT), values.get("micro_batch_size"), args.override
    )
    exported = export_checkpoint(Path(args.source), replace(line, settings=settings), arguments)
    written = (
        f"{exported.file}  {exported.format}, {exported.bytes:,} bytes, from {exported.checkpoint}"
    )
    checked = "bit-identical"
    if exported.format != "safetensors":
        checked = f"the outputs differ by {exported.difference:.1e} relative to the largest"
    print_result(args.json, asdict(exported), [written, f"read back: {checked}"])
    return ExitCode.DONE


def _strip_dynamic_batch_size(words: list[str]) -> list[str]:
    """Remove `--batch-size dynamic`, the default; everywhere else that option is a number."""
    text = "\0".join(words)
    for spelling in ("--batch-size\0dynamic", "--batch-size=dynamic"):
        text = text.replace(spelling, "")
    return [word for word in text.split("\0") if word]


def _add_export(parser: ConfigArgumentParser) -> None:
    parser.add_argument("source", metavar="RUN-or-checkpoint")
    parser.add_argument("--format", choices=list(FORMAT_SUFFIXES), default="safetensors")
    parser.add_argument(
        "--naming", choices=NAMINGS, help="names of the weights in safetensors [torchvision]"
    )
    parser.add_argument("--override", action="store_true", help="overwrite an existing file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_config_arguments(parser)


AVERAGE_DESCRIPTION = """\
Average checkpoints of a run: the mean of the newest ones, or an exponential average.
With --weight-avg-strategy, a run does this by itself at its end."""


def run_average(words: list[str]) -> int:
    line = parse_run_command("average RUN", words, AVERAGE_DESCRIPTION, _add_average)
    average = average_run(Path(line.args.run), line)
    print(f"{average.path}  {average.strategy} of {pluralize(average.checkpoints, 'checkpoint')}")
    print(f"next: convoy validate {average.path}")
    return ExitCode.DONE


def _add_average(parser: ConfigArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
