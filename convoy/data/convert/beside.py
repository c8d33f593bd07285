"""The small files beside the parts: what readers of each form look for, and the manifest."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convoy.data.convert.journal import Done
from convoy.data.convert.source import WORDS, Source
from convoy.data.convert.wish import Wish
from convoy.data.records import boxes, manifest, tar_metadata
from convoy.data.records.names import Names
from convoy.data.records.record import Boxes
from convoy.data.source import Ids, Split
from convoy.data.whole_files import write_file

Finished = Mapping[Split, list[Done]]
Named = Mapping[Split, tuple[Ids, Names]]  # records of the source, and what their files are called


def write_words(target: Path, source: Source) -> None:
    """The classes in words go along as they are."""
    found = next(iter(source.homes.values())) / WORDS
    if found.is_file():
        write_file(target / WORDS, found.read_bytes())


def write_metadata(wish: Wish, source: Source, finished: Finished) -> None:
    """`metadata.json`, as the reference's reader wants it beside tar shards."""
    lengths = {
        f"{split}_length": sum(done.records for done in parts) for split, parts in finished.items()
    }
    sums = [done.measured.sha256 for parts in finished.values() for done in parts]
    table: dict[str, Any] = {
        **lengths,
        "format": "img",
        "shuffle": wish.shuffle is not None,
        **{f"{split}_transform_pipeline": [] for split in finished},
        "seed": wish.shuffle,
        "image_quality": None,  # every image is the one it was
        "checksum": hashlib.sha256("".join(sums).encode()).hexdigest(),
        "class_names": source.class_names,
    }
    write_file(wish.target / tar_metadata.NAME, json.dumps(table, indent=1).encode())


def write_boxes(target: Path, source: Source, named: Named, finished: Finished) -> None:
    """The table of boxes beside class folders, where any image has one."""
    rows = [row for split in named for row in _rows(source, split, named[split], finished[split])]
    if rows:
        write_file(target / boxes.FILE_NAME, b"".join(rows))


def _rows(
    source: Source, split: Split, named: tuple[Ids, Names], parts: Iterable[Done]
) -> Iterator[bytes]:
    left_out = {one.number for done in parts for one in done.left_out}
    for number, name in zip(named[0].tolist(), named[1], strict=True):
        if number not in left_out:
            for corners in _texts(source.splits[split].boxes(number)):
                yield os.fsencode(name) + b"," + ",".join(corners).encode() + b"\n"


def _texts(rows: Boxes) -> Iterator[list[str]]:
    """As short as may be, but so that each number is read as the same."""
    for row in rows:
        yield [_text(corner) for corner in row]


def _text(corner: np.float32) -> str:
    short = np.format_float_positional(corner, trim="0")
    return short if np.float32(float(short)) == corner else repr(float(corner))


def write_manifest(
    wish: Wish, source: Source, identity: Mapping[str, Any], finished: Finished
) -> None:
    """What was written, with checksums; last of all."""
    table = {
        "format": wish.form,
        "class_names": source.class_names,
        "conversion": identity,
        "splits": {
            split: {
                "records": sum(done.records for done in parts),
                "shards": [done.written() for done in parts],
            }
            for split, parts in finished.items()
        },
    }
    write_file(wish.target / manifest.NAME, json.dumps(table, indent=1).encode())
