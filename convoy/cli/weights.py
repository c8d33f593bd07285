"""convoy import, export, average: weights in and out, and averages of checkpoints"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from convoy.api.checkpoints import (
    FORMAT_SUFFIXES,
    NAMINGS,
    ExportArguments,
    average_run,
    export_checkpoint,
    resolve_without_data,
)
from convoy.cli.args import TARGET_HELP, add_config_arguments, make_parser, parse_run_command
from convoy.cli.output import print_result
from convoy.config.command_line import RunHelp
from convoy.config.schema import RequestedOptions, Setting, setting_values, settings_from
from convoy.errors import ExitCode
from convoy.text import pluralize

if TYPE_CHECKING:
    from convoy.run.import_export import ImportResult

IMPORT_DESCRIPTION = """\
Import weights as a convoy checkpoint; every key and shape is checked.
WEIGHTS is a file with torchvision or timm state_dict keys (.safetensors, .pth, .pt, .bin), a convoy
run or checkpoint, or hf:OWNER/NAME. If --num-classes differs, the classifier is reinitialized."""

_IMPORT_DEFAULTS = {"data": Setting("generated", "convoy import")}  # the model sets the classes
_IMPORT_HELP = RunHelp(
    {
        "model": ("model", "num_classes", "image_size", "norm_type", "stem", "resnet_version"),
        "output": ("checkpoint_output_path", "name", "log_dir"),
    },
    texts={
        "num_classes": "Number of classes. Default: set by the model.",
        "checkpoint_output_path": "Folder to write to. Default: a new folder in --log-dir.",
    },
)


def run_import(argv: list[str]) -> int:
    usage = "convoy import WEIGHTS --model NAME [options]"
    parser = make_parser("import", IMPORT_DESCRIPTION, usage)
    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help="file, run, checkpoint or hf:OWNER/NAME")
    add("--architecture", metavar="NAME", help="name of the network in torchvision or timm")
    add("--json", action="store_true", help="print the result as JSON")
    add_config_arguments(parser)
    line = parse_run_command(parser, argv, _IMPORT_HELP)
    imported = _import(line.to_request(), line.args.weights, line.args.architecture)
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
        f"read {imported.source}: {size}, {naming} keys",
        *notes,
        f"{imported.folder}  sha256 {imported.weights_sha256}",
        f"next: convoy validate {imported.folder}, or convoy train --init-path {imported.folder}",
    ]
    print_result(line.args.json, row, lines)
    return ExitCode.DONE


def _import(request: RequestedOptions, weights: str, architecture: str | None) -> "ImportResult":
    """Import with the options of the network that the weights come from, unless they are given."""
    given = {**request.named_config, **request.command_line}
    request = replace(request, named_config={**_IMPORT_DEFAULTS, **request.named_config})
    resolved = resolve_without_data(request)
    from convoy.models.network import plan_network
    from convoy.run.import_export import import_weights, load_foreign_weights, origin_of_import

    loaded = load_foreign_weights(weights, resolved.config, plan_network(resolved.config))
    origin = origin_of_import(loaded, resolved.config, given, architecture)
    if origin is not None:
        settings = settings_from(str(origin), origin.options)
        resolved = resolve_without_data(
            replace(request, named_config={**settings, **request.named_config})
        )
    return import_weights(resolved, loaded, origin)


EXPORT_DESCRIPTION = """\
Export a checkpoint, or the newest valid checkpoint of a run: as weights with torchvision or
timm state_dict keys, as a torch.export program, or as ONNX (needs the extra `onnx`). The written
file is read back, and its outputs must match those of the network."""

_OUTPUT = "checkpoint_output_path"
# `--output` is a file here, and `--batch-size` the batch size of the exported program.
_EXPORT_OPTIONS = (_OUTPUT, "micro_batch_size")
_EXPORT_HELP = RunHelp(
    {
        "output": _EXPORT_OPTIONS,
        "options for a checkpoint outside a run folder": ("model", "num_classes"),
    },
    metavars={_OUTPUT: "FILE"},
    texts={
        _OUTPUT: "File to write. Default: the name of the model, in the current folder.",
        "micro_batch_size": "Batch size of the exported program, also --batch-size. Default: "
        "dynamic.",
    },
    default_source="the run",
)


def run_export(argv: list[str]) -> int:
    usage = "convoy export RUN-or-checkpoint [--batch-size N|dynamic] [options]"
    parser = make_parser("export", EXPORT_DESCRIPTION, usage)
    add = parser.add_argument
    add("source", metavar="RUN-or-checkpoint", help=TARGET_HELP)
    formats = list(FORMAT_SUFFIXES)
    add("--format", choices=formats, default=formats[0], help=f"format of the file [{formats[0]}]")
    add(
        "--naming",
        choices=NAMINGS,
        help="state_dict keys of the safetensors file [of a library that has the network]",
    )
    add("--overwrite", "--override", action="store_true", help="overwrite an existing file")
    add("--json", action="store_true", help="print the result as JSON")
    add_config_arguments(parser)
    line = parse_run_command(parser, _strip_dynamic_batch_size(argv), _EXPORT_HELP)
    args, values = line.args, setting_values(line.settings)
    settings = {
        name: setting for name, setting in line.settings.items() if name not in _EXPORT_OPTIONS
    }
    arguments = ExportArguments(
        args.format,
        args.naming,
        values.get(_OUTPUT),
        values.get("micro_batch_size"),
        args.overwrite,
    )
    exported = export_checkpoint(Path(args.source), replace(line, settings=settings), arguments)
    size = f"{exported.format}, {exported.bytes:,} bytes"
    checked = f"bit-identical, {exported.naming} keys"
    if exported.architecture is not None:
        checked += f" of its {exported.architecture}"
    if exported.format != "safetensors":
        checked = f"outputs differ by at most {exported.difference:.1e} of the largest output"
    lines = [f"{exported.file}  {size}, from {exported.checkpoint}", f"read back: {checked}"]
    print_result(args.json, asdict(exported), lines)
    return ExitCode.DONE


def _strip_dynamic_batch_size(argv: list[str]) -> list[str]:
    """Remove `--batch-size dynamic`, the default; everywhere else that option is a number."""
    text = "\0".join(argv)
    for spelling in ("--batch-size\0dynamic", "--batch-size=dynamic"):
        text = text.replace(spelling, "")
    return [word for word in text.split("\0") if word]


AVERAGE_DESCRIPTION = """\
Average checkpoints of a run: the mean of the newest ones, or an exponential average.
`convoy train --weight-avg-strategy mean` does this at the end of training."""
_AVERAGE_HELP = RunHelp(
    {
        "average": (
            *("weight_avg_strategy", "weight_avg_n", "weight_avg_exp_decay", "norm_statistics"),
        ),
        "data and device": ("data_dir", "dataloader_worker", "device"),
    },
    texts={"weight_avg_strategy": "How to average the checkpoints. Default: mean."},
    default_source="the run",
)


def run_average(argv: list[str]) -> int:
    parser = make_parser("average", AVERAGE_DESCRIPTION, "convoy average RUN [options]")
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    line = parse_run_command(parser, argv, _AVERAGE_HELP)
    average = average_run(Path(line.args.run), line)
    print(f"{average.path}  {average.strategy} of {pluralize(average.checkpoints, 'checkpoint')}")
    print(f"next: convoy validate {average.path}")
    return ExitCode.DONE
