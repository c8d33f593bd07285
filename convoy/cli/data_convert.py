"""convoy data convert"""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from convoy.cli.arguments import read_plain
from convoy.cli.saying import note, say
from convoy.config.command_line import Parser
from convoy.config.problems import Problem, refuse
from convoy.errors import ExitCode
from convoy.launch.cores import available_cores
from convoy.report.bar import make_bar

SAYS = """Images from class folders, TFRecord shards or WebDataset shards into any other of these:
the same bytes, labels, boxes, names and order. Interrupted, the same words go on where it ended.
A manifest with checksums is written last."""

_MOST_BAD = 10_000  # the manifest names each of them


def main(words: list[str]) -> int:
    """Say what was written, and what to do with it."""
    own = read_plain("data convert", words, SAYS, _add_own)
    refuse(list(_misfits(own)))
    from convoy.data.convert.conversion import convert
    from convoy.data.convert.wish import Sharding, Wish
    from convoy.data.hearing import Hearing

    sharding = Sharding(own.shards or (), own.shard_records or Sharding.records)
    wish = Wish(
        source=Path(own.source),
        target=Path(own.target),
        form=own.to,
        split=None if own.split == "all" else own.split,
        sharding=sharding,
        workers=own.workers or len(available_cores()),
        shuffle=own.shuffle,
        most_bad=own.max_bad_records if own.bad_records == "skip" else None,
    )
    with (
        closing(make_bar(sys.stderr, "indexing", "bytes")) as indexing,
        closing(make_bar(sys.stderr, "converting", "records")) as working,
    ):
        try:
            outcome = convert(wish, Hearing(note, indexing, working))
        except KeyboardInterrupt:
            note("stopped: what is whole is kept, and the same words go on from there")
            raise
    records = ", ".join(f"{count:,} {split}" for split, count in outcome.records.items())
    called = "class folders" if own.to == "folder" else "shards"
    say([f"left out: {one}" for one in outcome.left_out])
    say([f"{wish.target}: {records} records in {outcome.parts:,} {called}"])
    say([f"go on: convoy train --data imagenet --data-dir {wish.target}"])
    return ExitCode.DONE


def _misfits(own: Namespace) -> Iterator[Problem]:
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
    for name in ("shard_records", "workers"):
        value = vars(own)[name]
        if value is not None and value < 1:
            yield Problem(f"--{name.replace('_', '-')}", f"must be at least 1, got {value}")
    if not 0 <= own.max_bad_records <= _MOST_BAD:
        yield Problem("--max-bad-records", f"must be 0 … {_MOST_BAD}, got {own.max_bad_records}")
    if own.shuffle is not None and own.shuffle < 0:
        yield Problem("--shuffle", f"must be at least 0, got {own.shuffle}")


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError("takes whole numbers: 1024, or 1024,128") from error


def _add_own(parser: Parser) -> None:
    add = parser.add_argument
    add("source", metavar="DIR", help="where the images are")
    add("target", metavar="DIR", help="a new folder, or one to go on with")
    add("--to", required=True, choices=["folder", "tfrecord", "webdataset"])
    add("--split", default="all", choices=["train", "validation", "all"], help="[all]")
    add("--shards", type=_counts, metavar="N[,M]", help="shards of a split, or of each")
    add("--shard-records", type=int, metavar="N", help="records of a shard [1024]")
    add("--shuffle", type=int, metavar="SEED", help="write in another, random order")
    add("--workers", type=int, metavar="N", help="threads; unset: one a core")
    add("--bad-records", default="error", choices=["error", "skip"], help="[error]")
    add("--max-bad-records", type=int, default=100, metavar="N", help="that skip allows [100]")
