"""convoy data fetch, convert, verify, bench, show"""

import math
import sys
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convoy.cli.args import (
    ParsedCommand,
    add_config_arguments,
    make_parser,
    parse_command,
    parse_run_command,
    too_small_problems,
)
from convoy.cli.output import print_json, print_lines, print_note
from convoy.config.command_line import ConfigArgumentParser, RunHelp
from convoy.config.resolve import ResolvedConfig, refuse_unavailable, resolve
from convoy.config.schema import Problem, RunConfig, raise_problems, setting_values
from convoy.errors import ExitCode
from convoy.machine import usable_core_count
from convoy.planning.topology import Layout
from convoy.report.progress import make_bar
from convoy.report.stream import print_error
from convoy.run.start import fix_machine_values, inspect_data
from convoy.text import pluralize

FETCH_DESCRIPTION = """\
Download a dataset from its official URL. An interrupted download continues where it
stopped, and every file is verified against its published checksum."""


def run_fetch(argv: list[str]) -> int:
    parser = make_parser("data fetch", FETCH_DESCRIPTION)
    names = ["cifar10", "cifar100"]
    parser.add_argument("name", metavar="DATASET", choices=names, help=" or ".join(names))
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="folder to download to")
    args = parse_command(parser, argv)
    from convoy.data.download import ARCHIVES, fetch

    with closing(make_bar(sys.stderr, "fetching", "bytes")) as fetching:
        folder = fetch(ARCHIVES[args.name], Path(args.data_dir), fetching)
    print(f"{folder}: complete")
    print(f"next: convoy train --data {args.name} --model resnet20 --data-dir {args.data_dir}")
    return ExitCode.DONE


CONVERT_DESCRIPTION = """\
Convert between class folders, TFRecord files and WebDataset files, with the same bytes,
labels, boxes, names and order. If a conversion is interrupted, run the same command again to
continue. A manifest with checksums is written last."""

_SPLITS = ["train", "validation", "all"]
_MAX_BAD_RECORDS = 10_000  # the manifest lists each of them


def run_convert(argv: list[str]) -> int:
    args = _parse_convert(argv)
    raise_problems(_convert_problems(args))
    from convoy.data.convert.conversion import convert
    from convoy.data.convert.plan import ConversionRequest, Sharding
    from convoy.data.progress import ProgressCallbacks

    request = ConversionRequest(
        source=Path(args.source),
        target=Path(args.target),
        data_format=args.to,
        split=None if args.split == "all" else args.split,
        sharding=Sharding(args.num_files or (), args.records_per_file or Sharding.records),
        workers=args.workers,
        shuffle=args.shuffle,
        max_bad_records=args.max_bad_records if args.bad_records == "skip" else None,
    )
    with (
        closing(make_bar(sys.stderr, "indexing", "bytes")) as indexing,
        closing(make_bar(sys.stderr, "converting", "records")) as converting,
    ):
        try:
            result = convert(request, ProgressCallbacks(print_note, indexing, converting))
        except KeyboardInterrupt:
            print_note("stopped; finished parts are kept. Run the same command to continue")
            raise
    records = ", ".join(f"{count:,} {split}" for split, count in result.records.items())
    unit = "class folders" if args.to == "folder" else "files"
    print_lines(
        [
            *(f"skipped: {message}" for message in result.skipped),
            f"{request.target}: {records} records in {result.parts:,} {unit}",
            f"next: convoy train --data imagenet --data-dir {request.target}",
        ]
    )
    return ExitCode.DONE


def _convert_problems(args: Namespace) -> Iterator[Problem]:
    if args.num_files and args.records_per_file is not None:
        yield Problem("--num-files", "and --records-per-file are mutually exclusive; use one")
    if args.to == "folder" and (args.num_files or args.records_per_file is not None):
        text = "and --records-per-file apply to tfrecord and webdataset, not to class folders"
        yield Problem("--num-files", text)
    if args.to == "folder" and args.shuffle is not None:
        text = "does not apply to class folders: they are read in the order of their names"
        yield Problem("--shuffle", text)
    if args.num_files and not 1 <= len(args.num_files) <= 2:
        yield Problem("--num-files", "takes one number, or one for each split: 1024,128")
    if any(count < 1 for count in args.num_files or ()):
        yield Problem("--num-files", "must be at least 1")
    yield from too_small_problems(args, "records_per_file", "workers")
    if not 0 <= args.max_bad_records <= _MAX_BAD_RECORDS:
        text = f"must be between 0 and {_MAX_BAD_RECORDS}, got {args.max_bad_records}"
        yield Problem("--max-bad-records", text)
    yield from too_small_problems(args, "shuffle", minimum=0)


def _parse_counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError("takes integers: 1024, or 1024,128") from error


def _parse_convert(argv: list[str]) -> Namespace:
    parser = make_parser("data convert", CONVERT_DESCRIPTION)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="dataset to convert")
    target_help = "folder to write to: a new one, or that of an interrupted conversion"
    add("target", metavar="TARGET", help=target_help)
    formats = ["folder", "tfrecord", "webdataset"]
    add("--to", required=True, choices=formats, help="format to write")
    add("--split", default="all", choices=_SPLITS, help="split to convert [all]")
    files_help = "number of files: one number for both splits, or train,validation"
    add("--num-files", type=_parse_counts, metavar="N[,M]", help=files_help)
    add("--records-per-file", type=int, metavar="N", help="records per file [1024]")
    # The former spellings; elsewhere --shards is the number of pipeline stages.
    add("--shards", dest="num_files", type=_parse_counts, help=SUPPRESS)
    add("--shard-records", dest="records_per_file", type=int, help=SUPPRESS)
    add("--shuffle", type=int, metavar="SEED", help="shuffle the records with this seed")
    _add_workers(parser)
    bad_help = "stop at an invalid record, or skip it [error]"
    add("--bad-records", default="error", choices=["error", "skip"], help=bad_help)
    max_help = "maximum number of invalid records to skip [100]"
    add("--max-bad-records", type=int, default=100, metavar="N", help=max_help)
    return parse_command(parser, argv)


def _add_workers(parser: ConfigArgumentParser) -> None:
    cores, text = usable_core_count(), "number of threads [one per core]"
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help=text)


VERIFY_DESCRIPTION = """\
Read a whole dataset, verify its checksums, decode every image, and list each invalid
record with its file, offset and reason. Supports class folders, TFRecord and WebDataset files, and
CIFAR. Exits with 0 if everything is valid, with 3 otherwise."""


def run_verify(argv: list[str]) -> int:
    parser = make_parser("data verify", VERIFY_DESCRIPTION)
    add = parser.add_argument
    add("folder", metavar="DIR", help="folder of the dataset")
    add("--split", default="all", choices=_SPLITS, help="split to read [all]")
    _add_workers(parser)
    add("--no-decode", dest="decode", action="store_false", help="check image headers only")
    add("--json", action="store_true", help="print the result as JSON")
    args = parse_command(parser, argv)
    raise_problems(too_small_problems(args, "workers"))
    from convoy.data.progress import ProgressCallbacks
    from convoy.data.verify import VerifyRequest, verify

    request = VerifyRequest(
        folder=Path(args.folder),
        split=None if args.split == "all" else args.split,
        workers=args.workers,
        decode=args.decode,
    )
    reports = []
    with (
        closing(make_bar(sys.stderr, "reading", "bytes")) as reading,
        closing(make_bar(sys.stderr, "reading", "records")) as verifying,
    ):
        for report in verify(request, ProgressCallbacks(print_note, reading, verifying)):
            reports.append(report)
            print_lines([] if args.json else report.lines())
    all_valid = all(report.is_valid for report in reports)
    if args.json:
        splits = {report.split: asdict(report) for report in reports}
        print_json({"folder": args.folder, "good": all_valid, "splits": splits})
    return ExitCode.DONE if all_valid else ExitCode.DATA


BENCH_DESCRIPTION = """\
Measure the data loading throughput of a run without its model: images are read, augmented,
normalized and collated as in training. An element is one micro-batch, copied as in a transfer to a
device. --epochs and --elements set the length; default: 2 epochs of 512 elements, or of all data if
it has fewer. With --doctor, find the bottleneck of a training run and measure which settings speed
it up."""

_DATA_OPTIONS = ("data", "data_dir", "image_size", "seed")
_AUGMENTATION = ("augment", "crop_rule", "mixup_alpha", "cutmix_lambda_low", "cutmix_lambda_high")
_BENCH_HELP = RunHelp(
    {
        "data": (*_DATA_OPTIONS, "micro_batch_size", "epoch"),
        "loading": ("dataloader_worker", "dataloader_kind", "prefetch_depth", "dataset_cache"),
        "augmentation": _AUGMENTATION,
    },
    texts={"epoch": "Number of epochs to measure. [2]"},
)

_FEED_OPTIONS = ("dataloader_worker", "enable_recompute", "offload_optimizer")
_MAX_SAMPLES_PER_UPDATE = 64  # accumulating more would only take longer


def run_bench(argv: list[str]) -> int:
    """Print the throughput of each epoch as soon as it is measured; then the diagnosis."""
    line = _parse_bench(argv)
    args, resolved = line.args, resolve(line.to_request(_bench_problems(line)))
    needs_model = args.doctor and args.model_rate is None
    refuse_unavailable(resolved, data_only=not needs_model)
    resolved = inspect_data(resolved)[0]
    from convoy.bench.feed import EpochThroughput, bench_feed, mean_throughput_text
    from convoy.run.open_feed import open_feed

    epochs: list[EpochThroughput] = []
    # The epochs of a named configuration are the length of its training run, not of a benchmark.
    count = int(setting_values(line.settings).get("epoch", 2))
    feed = open_feed(_single_process_config(resolved))
    for epoch in bench_feed(feed, count, args.elements, args.copy):
        epochs.append(epoch)
        print_lines([] if args.json else [epoch.as_text(len(epochs))])
    results: dict[str, Any] = {"epochs": [epoch.as_json() for epoch in epochs]}
    print_lines([] if args.json else [mean_throughput_text(epochs)])
    if args.doctor:
        from convoy.bench.doctor import diagnose

        feed = open_feed(_single_process_config(resolved, _MAX_SAMPLES_PER_UPDATE))
        diagnosis = diagnose(feed, args.model_rate, print_error)
        results["doctor"] = diagnosis.as_json()
        print_lines([] if args.json else ["", *diagnosis.lines()])
    if args.json:
        print_json(results)
    return ExitCode.DONE


def _single_process_config(resolved: ResolvedConfig, max_samples: int | None = None) -> RunConfig:
    """Give all micro-batches to one process; `max_samples` limits the samples of an update."""
    batch = resolved.config.batch
    micro_batches = batch.gradient_accumulation * batch.replicas
    if max_samples is not None:
        micro_batches = min(micro_batches, max(1, max_samples // batch.micro_batch_size))
    values = Layout().option_values(micro_batches) | {"instances": 1, "hosts": 1, "bn_span": 1}
    changed = {name: value for name, value in values.items() if name not in _FEED_OPTIONS}
    return fix_machine_values(resolved.with_values(changed, "convoy data bench"), 1).config


def _bench_problems(line: ParsedCommand) -> Iterator[Problem]:
    rate = line.args.model_rate
    yield from _fractional_epoch_problems(line, "--epochs")
    yield from too_small_problems(line.args, "elements")
    if rate is not None and not (0 < rate < math.inf):
        yield Problem("--model-rate", f"must be a finite number greater than 0, got {rate:g}")
    if rate is not None and not line.args.doctor:
        yield Problem("--model-rate", "requires --doctor")


def _fractional_epoch_problems(line: ParsedCommand, spelling: str) -> Iterator[Problem]:
    epoch = setting_values(line.settings).get("epoch")
    if epoch is not None and epoch % 1:
        yield Problem(spelling, f"must be an integer here, got {epoch:g}")


def _parse_bench(argv: list[str]) -> ParsedCommand:
    parser = make_parser("data bench", BENCH_DESCRIPTION)
    rate_help = "throughput of the model in images/s [measured in a short training run]"
    add = parser.add_argument
    add("--elements", type=int, metavar="N", help="elements (micro-batches) per epoch [512]")
    add("--no-copy", dest="copy", action="store_false", help="do not copy the elements")
    add("--doctor", action="store_true", help="find the bottleneck and faster settings")
    add("--model-rate", type=float, metavar="X", help=rate_help)
    add("--json", action="store_true", help="print the results as JSON")
    add_config_arguments(parser)
    return parse_run_command(parser, argv, _BENCH_HELP)


SHOW_DESCRIPTION = """\
Write an image that shows samples as the network receives them, but without normalization:
one row per sample, one column per epoch, starting at --epochs (counted from 1). With --split
validation, show samples spread evenly over that split, each with its label below."""

_OUTPUT = "checkpoint_output_path"  # `--output` is a file here
_SHOW_HELP = RunHelp(
    {
        "data": (*_DATA_OPTIONS, "epoch"),
        "augmentation": _AUGMENTATION,
        "output": (_OUTPUT,),
    },
    metavars={_OUTPUT: "FILE"},
    texts={
        "epoch": "Epoch of the first column, counted from 1. [1]",
        _OUTPUT: "File to write, with the suffix .png. [samples.png]",
    },
)


def run_show(argv: list[str]) -> int:
    usage = "convoy data show [--output FILE.png] [options]"
    parser = make_parser("data show", SHOW_DESCRIPTION, usage)
    add = parser.add_argument
    add("--rows", type=int, default=8, metavar="N", help="rows of images [8]")
    add("--columns", type=int, default=8, metavar="N", help="columns of images [8]")
    add("--split", choices=["train", "validation"], default="train", help="split to show [train]")
    add("--overwrite", "--override", action="store_true", help="overwrite an existing file")
    add_config_arguments(parser)
    line = parse_run_command(parser, argv, _SHOW_HELP)
    args, values = line.args, setting_values(line.settings)
    output = Path(values.get(_OUTPUT) or "samples.png")
    resolved = resolve(line.to_request(_show_problems(line, output), exclude=(_OUTPUT, "epoch")))
    refuse_unavailable(resolved, data_only=True)
    from convoy.run.contact_sheet import SheetRequest, write_sheet

    first = int(values.get("epoch") or 1) - 1
    request = SheetRequest(output, args.rows, args.columns, first, args.split, args.overwrite)
    sheet = write_sheet(fix_machine_values(inspect_data(resolved)[0], 1).config, request)
    count, epochs = sum(map(len, sheet.rows)), ""
    if sheet.column_titles:
        count, epochs = len(sheet.rows), f", {pluralize(len(sheet.rows[0]), 'epoch')}"
    text = f"{pluralize(count, 'sample')} of {resolved.config.data.data}, {args.split} split"
    print_lines([f"{request.output}: {text}{epochs}"])
    return ExitCode.DONE


def _show_problems(line: ParsedCommand, output: Path) -> Iterator[Problem]:
    yield from too_small_problems(line.args, "rows", "columns")
    yield from _fractional_epoch_problems(line, "--epochs")
    if output.suffix.lower() != ".png":
        yield Problem("--output", f"{output} is not a valid output file; its name must end in .png")


ACTIONS = {
    "convert": (run_convert, "convert between class folders, TFRecord and WebDataset"),
    "verify": (run_verify, "read a whole dataset and list all invalid records"),
    "fetch": (run_fetch, "download a dataset and verify its checksums"),
    "bench": (run_bench, "measure data loading throughput; with --doctor, find the bottleneck"),
    "show": (run_show, "write an image of augmented samples"),
}
_ACTION_LIST = "\n".join(f"  {name:<8} {text}" for name, (_, text) in ACTIONS.items())
DESCRIPTION = (
    f"Work with datasets:\n{_ACTION_LIST}\n`convoy data ACTION --help` describes an action."
)


def main(argv: list[str]) -> int:
    parser = make_parser("data", DESCRIPTION)
    parser.add_argument("action", metavar="ACTION", choices=list(ACTIONS), help="listed above")
    args = parse_command(parser, argv[:1])
    run, _ = ACTIONS[args.action]
    return run(argv[1:])
