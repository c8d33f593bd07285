"""convoy import, export, average: weights in and out, and one checkpoint out of many"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from convoy.cli.args import Line, add_config, find_target, read_line
from convoy.cli.output import show
from convoy.config.command_line import Parser
from convoy.config.resolve import RequestedOptions, Resolved, resolve, settings_of_run
from convoy.config.settings import Problem, Setting, refuse, values_of
from convoy.config.support import refuse_unready, unavailable
from convoy.errors import ExitCode

IMPORT_SAYS = """\
Weights of other programs as a checkpoint of ours, every name and shape checked.
WEIGHTS is a file in torchvision's or timm's naming (.safetensors, .pth, .pt, .bin), a run or
checkpoint of ours, or hf:OWNER/NAME. Another --num-classes begins with a new classifier."""

_UNSAID = {"data": Setting("generated", "convoy import")}  # leaves the classes to the model


def run_import(words: list[str]) -> int:
    line = read_line("import WEIGHTS --model NAME", words, IMPORT_SAYS, _add_import)
    asked = line.asked()
    resolved = _resolved_without_data(replace(asked, named={**_UNSAID, **asked.named}))
    from convoy.run.foreign_weights import import_weights

    made = import_weights(resolved, line.own.weights)
    naming, tensors, notes = made.fitted.naming, made.fitted.model, made.fitted.notes
    parameters = sum(one.numel() for name, one in tensors.items() if ".running_" not in name)
    row = {
        "weights": made.place,
        "naming": naming,
        "tensors": len(tensors),
        "parameters": parameters,
        "notes": notes,
        "folder": made.folder,
        "weights_sha256": made.weights_sha256,
    }
    size = f"{len(tensors):,} tensors, {parameters:,} parameters"
    lines = [
        f"read {made.place}: {size}, names of {naming}",
        *notes,
        f"{made.folder}  sha256 {made.weights_sha256}",
        f"go on: convoy validate {made.folder}, or convoy train --init-path {made.folder}",
    ]
    show(line.own.json, row, lines)
    return ExitCode.DONE


def _add_import(parser: Parser) -> None:
    parser.add_argument("weights", metavar="WEIGHTS", help="a file, a run, or hf:OWNER/NAME")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    add_config(parser)


def _resolved_without_data(asked: RequestedOptions) -> Resolved:
    resolved = resolve(asked)
    refuse(one.problem for one in unavailable(resolved.settings))
    return resolved


EXPORT_SAYS = """\
One checkpoint for other programs: the one given, or the newest sound one of a run.
Weights in names that torchvision or timm load, a torch.export program, or ONNX (needs the extra
`onnx`). What was written is read back and must answer as the network does."""

SUFFIXES = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
NAMINGS = ("torchvision", "timm", "convoy")
_USAGE = "export RUN-or-checkpoint [--batch-size N|dynamic]"
_OUTPUT = "checkpoint_output_path"
_OURS = (_OUTPUT, "micro_batch_size")  # `--output` is a file here, `--batch-size` that of the file


def run_export(words: list[str]) -> int:
    line = read_line(_USAGE, _of_any_batch(words), EXPORT_SAYS, _add_export)
    own, source = line.own, Path(line.own.source)
    _, run = find_target(source)
    resolved = _resolved_without_data(line.asked(without=_OURS, run=run))
    from convoy.run.foreign_weights import ExportWish, export

    given = values_of(line.given)
    output = given.get(_OUTPUT) or resolved.config.network.model + SUFFIXES[own.format]
    batch_size = given.get("micro_batch_size")
    refuse(_export_misfits(line, str(output)))
    wish = ExportWish(own.format, own.naming or NAMINGS[0], Path(output), batch_size, own.override)
    made = export(resolved.config, source, wish)
    written = f"{made.file}  {made.format}, {made.bytes:,} bytes, out of {made.checkpoint}"
    checked = "every bit is there"
    if made.format != "safetensors":
        checked = f"its answers differ by {made.difference:.1e} of the largest"
    show(own.json, asdict(made), [written, f"read back: {checked}"])
    return ExitCode.DONE


def _of_any_batch(words: list[str]) -> list[str]:
    """`--batch-size dynamic` says what is so anyhow; everywhere else that option is a number."""
    text = "\0".join(words)
    for spelling in ("--batch-size\0dynamic", "--batch-size=dynamic"):
        text = text.replace(spelling, "")
    return [word for word in text.split("\0") if word]


def _export_misfits(line: Line, output: str) -> Iterator[Problem]:
    form, ending = line.own.format, SUFFIXES[line.own.format]
    if not output.endswith(ending):
        text = f"{output} is no name for --format {form}; one that ends in {ending} is"
        yield Problem("--output", text)
    if line.own.naming and form != "safetensors":
        yield Problem("--naming", f"is for --format safetensors; {form} holds no names")
    if "micro_batch_size" in line.given and form == "safetensors":
        yield Problem("--batch-size", "is for programs; --format safetensors holds weights alone")


def _add_export(parser: Parser) -> None:
    parser.add_argument("source", metavar="RUN-or-checkpoint")
    parser.add_argument("--format", choices=list(SUFFIXES), default="safetensors")
    parser.add_argument(
        "--naming", choices=NAMINGS, help="of the weights in safetensors; torchvision if unset"
    )
    parser.add_argument("--override", action="store_true", help="replace a file that is there")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    add_config(parser)


AVERAGE_SAYS = """\
One checkpoint out of many: the mean of a run's newest, or an exponential average.
A run that was told to average does this by itself at its end."""

_STRATEGY = "weight_avg_strategy"


def run_average(words: list[str]) -> int:
    line = read_line("average RUN", words, AVERAGE_SAYS, _add_average)
    run, problems = Path(line.own.run), line.problems
    settings, given = settings_of_run(run / "config.yaml"), values_of(line.given)
    if given.get(_STRATEGY) == "none":
        text = "none makes no average; use mean or exponential, or leave it out"
        problems = [*problems, Problem("--weight-avg-strategy", text)]
    if values_of(settings).get(_STRATEGY, "none") == "none":  # then it is averaged by the mean
        settings[_STRATEGY] = Setting("mean", "convoy average")
    resolved = resolve(RequestedOptions(line.given, settings, problems))
    refuse_unready(resolved)
    from convoy.run.averaging import average_checkpoints

    made = average_checkpoints(resolved.config, run / "checkpoints")
    print(f"{made.path}  {made.strategy} of {made.checkpoints} checkpoints")
    print(f"go on: convoy validate {made.path}")
    return ExitCode.DONE


def _add_average(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
