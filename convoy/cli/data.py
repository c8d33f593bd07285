"""convoy data fetch, convert, verify, bench, show"""

import json
import math
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from convoy.cli.args import Line, add_config, read_line, read_plain, too_small
from convoy.cli.output import note, say
from convoy.config.command_line import Parser
from convoy.config.resolve import Resolved, resolve
from convoy.config.schema import RunConfig
from convoy.config.settings import Problem, refuse, values_of
from convoy.config.support import refuse_unready, refuse_unready_data
from convoy.errors import ExitCode
from convoy.machine import available_cores
from convoy.plan.topology import Layout
from convoy.report.progress import make_bar
from convoy.report.stream import print_error
from convoy.run.start import inspect_data, settle

FETCH_SAYS = """\
Download a data set from its official address; an interrupted download goes on where it
stopped, and every file is checked against its published checksum."""


def run_fetch(words: list[str]) -> int:
    own = read_plain("data fetch", words, FETCH_SAYS, _add_fetch)
    from convoy.data.download import fetch

    with closing(make_bar(sys.stderr, "fetching", "bytes")) as fetching:
        home = fetch(own.name, Path(own.data_dir), on_progress=fetching)
    print(f"{home}: complete")
    print(f"go on: convoy train --data {own.name} --model resnet20 --data-dir {own.data_dir}")
    return ExitCode.DONE


def _add_fetch(parser: Parser) -> None:
    parser.add_argument("name", choices=["cifar10", "cifar100"])
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="where to put it")


CONVERT_SAYS = """\
Images from class folders, TFRecord shards or WebDataset shards into any other of these:
the same bytes, labels, boxes, names and order. After an interruption the same command continues.
A manifest with checksums is written last."""

_MOST_BAD = 10_000  # the manifest names each of them


def run_convert(words: list[str]) -> int:
    own = read_plain("data convert", words, CONVERT_SAYS, _add_convert)
    refuse(list(_convert_misfits(own)))
    from convoy.data.convert.conversion import convert
    from convoy.data.convert.plan import ConversionRequest, Sharding
    from convoy.data.progress import ProgressCallbacks

    request = ConversionRequest(
        source=Path(own.source),
        target=Path(own.target),
        form=own.to,
        split=None if own.split == "all" else own.split,
        sharding=Sharding(own.shards or (), own.shard_records or Sharding.records),
        workers=own.workers,
        shuffle=own.shuffle,
        most_bad=own.max_bad_records if own.bad_records == "skip" else None,
    )
    with (
        closing(make_bar(sys.stderr, "indexing", "bytes")) as indexing,
        closing(make_bar(sys.stderr, "converting", "records")) as working,
    ):
        try:
            result = convert(request, ProgressCallbacks(note, indexing, working))
        except KeyboardInterrupt:
            note("stopped; finished parts are kept. Run the same command to continue")
            raise
    records = ", ".join(f"{count:,} {split}" for split, count in result.records.items())
    called = "class folders" if own.to == "folder" else "shards"
    say([f"left out: {message}" for message in result.left_out])
    say([f"{request.target}: {records} records in {result.parts:,} {called}"])
    say([f"go on: convoy train --data imagenet --data-dir {request.target}"])
    return ExitCode.DONE


def _convert_misfits(own: Namespace) -> Iterator[Problem]:
    if own.shards and own.shard_records is not None:
        yield Problem("--shards", "and --shard-records are two ways to say it; use one of them")
    if own.to == "folder" and (own.shards or own.shard_records is not None):
        yield Problem("--shards", "and --shard-records are for shards, not for class folders")
    if own.to == "folder" and own.shuffle is not None:
        yield Problem(
            "--shuffle", "has no place in class folders: they are read in the order of their names"
        )
    if own.shards and not 1 <= len(own.shards) <= 2:
        yield Problem("--shards", "takes one number, or one for each split: 1024,128")
    if any(count < 1 for count in own.shards or ()):
        yield Problem("--shards", "must be at least 1")
    yield from too_small(own, "shard_records", "workers")
    if not 0 <= own.max_bad_records <= _MOST_BAD:
        yield Problem("--max-bad-records", f"must be 0 … {_MOST_BAD}, got {own.max_bad_records}")
    yield from too_small(own, "shuffle", least=0)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError("takes whole numbers: 1024, or 1024,128") from error


def _add_convert(parser: Parser) -> None:
    add = parser.add_argument
    add("source", metavar="DIR", help="where the images are")
    add("target", metavar="DIR", help="a new folder, or one to go on with")
    add("--to", required=True, choices=["folder", "tfrecord", "webdataset"])
    add("--split", default="all", choices=["train", "validation", "all"], help="[all]")
    add("--shards", type=_counts, metavar="N[,M]", help="shards of a split, or of each")
    add("--shard-records", type=int, metavar="N", help="records of a shard [1024]")
    add("--shuffle", type=int, metavar="SEED", help="write in another, random order")
    _add_workers(parser)
    add("--bad-records", default="error", choices=["error", "skip"], help="[error]")
    add("--max-bad-records", type=int, default=100, metavar="N", help="that skip allows [100]")


def _add_workers(parser: Parser) -> None:
    cores = len(available_cores())
    parser.add_argument(
        "--workers", type=int, default=cores, metavar="N", help="threads; unset: one a core"
    )


VERIFY_SAYS = """\
Read everything of a data set, checksums and every pixel, and list each bad record with
its file, offset and reason. Class folders, TFRecord and WebDataset shards, CIFAR. Ends with 0 when
all is good, with 3 otherwise."""


def run_verify(words: list[str]) -> int:
    own = read_plain("data verify", words, VERIFY_SAYS, _add_verify)
    refuse(too_small(own, "workers"))
    from convoy.data.progress import ProgressCallbacks
    from convoy.data.verify import Scope, verify

    scope = Scope(
        folder=Path(own.folder),
        split=None if own.split == "all" else own.split,
        workers=own.workers,
        decoded=own.decode,
    )
    reports = []
    with (
        closing(make_bar(sys.stderr, "reading", "bytes")) as reading,
        closing(make_bar(sys.stderr, "reading", "records")) as working,
    ):
        for report in verify(scope, ProgressCallbacks(note, reading, working)):
            reports.append(report)
            say([] if own.json else report.lines())
    good = all(report.is_good for report in reports)
    if own.json:
        splits = {report.split: report.as_json() for report in reports}
        print(json.dumps({"folder": own.folder, "good": good, "splits": splits}, indent=1))
    return ExitCode.DONE if good else ExitCode.DATA


def _add_verify(parser: Parser) -> None:
    add = parser.add_argument
    add("folder", metavar="DIR", help="where the data is")
    add("--split", default="all", choices=["train", "validation", "all"], help="[all]")
    _add_workers(parser)
    add("--no-decode", dest="decode", action="store_false", help="headers of images only")
    add("--json", action="store_true", help="print the result as JSON")


BENCH_SAYS = """\
How fast the images of a run come when nothing waits for them: read, augmented, normalized
and put together as in training. An element is one micro-batch, copied as if to a device. --epochs
and --elements say how many; 2 epochs of 512 elements, or of all the data, if nothing does.
With --doctor: what limits a training, and which settings would help by how much, all measured."""

_OF_THE_FEED = ("dataloader_worker", "enable_recompute", "offload_optimizer")
_FEW = 64  # samples: a model that sums up more before it changes would only take longer


def run_bench(words: list[str]) -> int:
    """The figures of each epoch, as soon as they are there; then what the doctor says."""
    line = read_line("data bench", words, BENCH_SAYS, _add_bench)
    own, resolved = line.own, resolve(line.asked(_bench_misfits(line)))
    trains = own.doctor and own.model_rate is None
    (refuse_unready if trains else refuse_unready_data)(resolved)
    resolved = inspect_data(resolved)[0]
    from convoy.bench.feed import EpochSpeed, bench_feed, mean_line
    from convoy.run.open_feed import open_feed

    epochs: list[EpochSpeed] = []
    # Those of a named configuration are the length of its training, which nobody asks for.
    count = int(values_of(line.given).get("epoch", 2))
    for epoch in bench_feed(open_feed(_alone(resolved)), count, own.elements, own.copy):
        epochs.append(epoch)
        say([] if own.json else [epoch.line(len(epochs))])
    figures: dict[str, Any] = {"epochs": [epoch.as_json() for epoch in epochs]}
    say([] if own.json else [mean_line(epochs)])
    if own.doctor:
        from convoy.bench.doctor import diagnose

        diagnosis = diagnose(open_feed(_alone(resolved, _FEW)), own.model_rate, print_error)
        figures["doctor"] = diagnosis.as_json()
        say([] if own.json else ["", *diagnosis.lines()])
    if own.json:
        print(json.dumps(figures, indent=1))
    return ExitCode.DONE


def _alone(resolved: Resolved, most: int | None = None) -> RunConfig:
    """The same micro-batches, all of them for one process; at most so many samples an update."""
    batch = resolved.config.batch
    micro_batches = batch.gradient_accumulation * batch.replicas
    if most is not None:
        micro_batches = min(micro_batches, max(1, most // batch.micro_batch_size))
    values = Layout().values(micro_batches) | {"instances": 1, "hosts": 1, "bn_span": 1}
    kept = {name: one for name, one in values.items() if name not in _OF_THE_FEED}
    return settle(resolved.changed(kept, "convoy data bench"), 1).config


def _bench_misfits(line: Line) -> Iterator[Problem]:
    rate = line.own.model_rate
    yield from _broken_epoch(line, "--epochs")
    yield from too_small(line.own, "elements")
    if rate is not None and not (0 < rate < math.inf):
        yield Problem("--model-rate", f"must be above 0 and finite, got {rate:g}")
    if rate is not None and not line.own.doctor:
        yield Problem("--model-rate", "is for the doctor; add --doctor")


def _broken_epoch(line: Line, spelling: str) -> Iterator[Problem]:
    epoch = values_of(line.given).get("epoch")
    if epoch is not None and epoch % 1:
        yield Problem(spelling, f"must be a whole number here, got {epoch:g}")


def _add_bench(parser: Parser) -> None:
    rate_help = "images/s that the model takes; measured by a short training if unset"
    add = parser.add_argument
    add("--elements", type=int, metavar="N", help="micro-batches of an epoch [512]")
    add("--no-copy", dest="copy", action="store_false", help="leave each element where it is")
    add("--doctor", action="store_true", help="find what limits, and what helps")
    add("--model-rate", type=float, metavar="X", help=rate_help)
    add("--json", action="store_true", help="print the figures as JSON")
    add_config(parser)


SHOW_SAYS = """\
A picture of samples exactly as the network gets them, but for the normalization: a row
for each sample, a column for each epoch from --epoch on (1 is the first). With --split
validation: samples from anywhere in that split, each with its label beneath."""

_OUTPUT = "checkpoint_output_path"  # `--output` is a file here


def run_show(words: list[str]) -> int:
    line = read_line("data show [--output FILE.png]", words, SHOW_SAYS, _add_show)
    own, given = line.own, values_of(line.given)
    output = Path(given.get(_OUTPUT) or "samples.png")
    resolved = resolve(line.asked(_show_misfits(line, output), without=(_OUTPUT, "epoch")))
    refuse_unready_data(resolved)
    from convoy.run.contact_sheet import SheetWish, write_sheet

    first = int(given.get("epoch") or 1) - 1
    wish = SheetWish(output, own.rows, own.columns, first, own.split, own.override)
    sheet = write_sheet(settle(inspect_data(resolved)[0], 1).config, wish)
    columns = len(sheet.rows[0].cells)
    of_epochs = f", {columns} epoch{'s' * (columns > 1)}" if sheet.heads else ""
    count = len(sheet.rows) if sheet.heads else sum(len(row.cells) for row in sheet.rows)
    samples = f"{count} sample{'s' * (count > 1)}"
    say([f"{wish.output}: {samples} of {resolved.config.data.data}, {own.split} split{of_epochs}"])
    return ExitCode.DONE


def _show_misfits(line: Line, output: Path) -> Iterator[Problem]:
    yield from too_small(line.own, "rows", "columns")
    yield from _broken_epoch(line, "--epoch")
    if output.suffix.lower() != ".png":
        yield Problem("--output", f"{output} is no name for a picture; end it in .png")


def _add_show(parser: Parser) -> None:
    parser.add_argument("--rows", type=int, default=8, metavar="N", help="of images [8]")
    parser.add_argument("--columns", type=int, default=8, metavar="N", help="of images [8]")
    parser.add_argument("--split", choices=["train", "validation"], default="train")
    parser.add_argument("--override", action="store_true", help="replace a file that is there")
    add_config(parser)


ACTIONS = {
    "convert": (run_convert, "class folders, TFRecord and WebDataset shards into each other"),
    "verify": (run_verify, "read everything, and list every record that is bad"),
    "fetch": (run_fetch, "download a data set from its official address, with its checksums"),
    "bench": (run_bench, "how fast the images of a run come; with --doctor, what limits it"),
    "show": (run_show, "a picture of samples as training sees them"),
}
_LIST = "\n".join(f"  {name:<8} {says}" for name, (_, says) in ACTIONS.items())
SAYS = f"What can be done with data:\n{_LIST}\n`convoy data ACTION --help` tells more."


def main(words: list[str]) -> int:
    own = read_plain("data", words[:1], SAYS, _add_own)
    run, _ = ACTIONS[own.action]
    return run(words[1:])


def _add_own(parser: Parser) -> None:
    parser.add_argument("action", choices=list(ACTIONS))
