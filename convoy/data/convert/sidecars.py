"""The small files beside the parts: what readers of each format look for, and the manifest."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convoy.data.convert.plan import ConversionPlan, ConversionRequest
from convoy.data.convert.source import CLASS_WORDS, ConversionSource
from convoy.data.records import boxes, manifest
from convoy.data.records.manifest import WrittenPart
from convoy.data.records.tar import METADATA
from convoy.data.source import Split
from convoy.files import atomic_path

Written = Mapping[Split, list[WrittenPart]]


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_class_words(target: Path, source: ConversionSource) -> None:
    """The classes in words are copied as they are."""
    if source.words_file.is_file():
        _write(target / CLASS_WORDS, source.words_file.read_bytes())


def write_metadata(request: ConversionRequest, source: ConversionSource, written: Written) -> None:
    """`metadata.json`, as the reference's reader wants it beside tar shards."""
    sums = [part.sha256 for parts in written.values() for part in parts]
    table: dict[str, Any] = {
        **{
            f"{split}_length": sum(part.records for part in parts)
            for split, parts in written.items()
        },
        "format": "img",
        "shuffle": request.shuffle is not None,
        **{f"{split}_transform_pipeline": [] for split in written},
        "seed": request.shuffle,
        "image_quality": None,  # no image was encoded again
        "checksum": hashlib.sha256("".join(sums).encode()).hexdigest(),
        "class_names": source.class_names,
    }
    _write(request.target / METADATA, json.dumps(table, indent=1).encode())


def write_boxes(
    target: Path, source: ConversionSource, plan: ConversionPlan, written: Written
) -> None:
    """The table of boxes beside class folders, if any image has one."""
    rows = [row for split in plan.names for row in _rows(source, split, plan, written[split])]
    if rows:
        _write(target / boxes.FILE_NAME, b"".join(rows))


def _rows(
    source: ConversionSource, split: Split, plan: ConversionPlan, parts: list[WrittenPart]
) -> Iterator[bytes]:
    left_out = {bad.number for part in parts for bad in part.left_out}
    numbers, names = plan.names[split]
    for number, name in zip(numbers.tolist(), names, strict=True):
        for box in source.splits[split].boxes(number) if number not in left_out else ():
            yield name + b"," + ",".join(map(_text, box)).encode() + b"\n"


def _text(corner: np.float32) -> str:
    """As short as possible, but read as the same number again."""
    short = np.format_float_positional(corner, trim="0")
    return short if np.float32(float(short)) == corner else repr(float(corner))


def write_manifest(
    request: ConversionRequest,
    source: ConversionSource,
    identity: Mapping[str, Any],
    written: Written,
) -> None:
    """What was written, with checksums; last of all."""
    table = {
        "format": request.form,
        "class_names": source.class_names,
        "conversion": identity,
        "splits": {
            split: {
                "records": sum(part.records for part in parts),
                "shards": [part.as_json() for part in parts],
            }
            for split, parts in written.items()
        },
    }
    _write(request.target / manifest.NAME, json.dumps(table, indent=1).encode())
