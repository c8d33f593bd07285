"""One tar shard, read from end to end: its samples, their labels and boxes, and what is wrong.

Members that follow each other under one key are a sample: `000001.jpg`, `000001.cls` and
perhaps `000001.json`. The key ends at the first dot of the file name, as webdataset has it.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from convoy.config.user_text import printable, shown
from convoy.data.records.boxes import box_problems, with_area
from convoy.data.records.index import MOST_CLASSES
from convoy.data.records.listing import SUFFIXES
from convoy.data.records.record import MAX_RECORD_BYTES, NO_BOXES, Boxes
from convoy.data.records.scan import Findings, ShardScan
from convoy.data.records.tar_members import DamageError, Member, PackedError, members
from convoy.errors import DataError

IMAGES = frozenset(suffix.removeprefix(b".") for suffix in SUFFIXES)
_NAME = re.compile(rb"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key and suffix
_OWN = re.compile(rb"__[^/]*__(?:$|[./])")  # what webdataset keeps for itself
_DIGITS = re.compile(rb"\s*[0-9]{1,18}\s*")
_MOST_TEXT_BYTES = 2**20  # of a .cls or a .json
_BUFFER = 2**20
_FAR = 2**31  # corners beyond it are not even pixels


class _BadSampleError(Exception):
    """Why a sample cannot be used."""


@dataclass
class Group:
    """Members under one key."""

    key: bytes
    start: int
    parts: dict[bytes, Member] = field(default_factory=dict)
    twice: bytes | None = None  # a suffix that came again


def scan_shard(path: Path) -> ShardScan:
    """All samples of a shard; DataError for a compressed one."""
    with path.open("rb", buffering=_BUFFER) as stream:
        try:
            return scan_stream(stream, stream.seek(0, os.SEEK_END))
        except PackedError as packed:
            raise DataError(
                f"{printable(str(path))}: compressed with {packed}; samples are read in any "
                "order, which that does not allow: unpack it to a plain .tar"
            ) from packed


def scan_stream(stream: BinaryIO, total: int) -> ShardScan:
    """All samples in `total` bytes. Where there is no way on, the rest is one bad record."""
    findings = Findings()
    try:
        for sample in groups(members(stream, total)):
            _judge(stream, sample, findings)
    except DamageError as damage:
        findings.bad(damage.offset, total - damage.offset, str(damage), crc=0)
    return findings.done()


def groups(entries: Iterator[Member]) -> Iterator[Group]:
    """Neighbors with one key. Only what follows a sample shows that it is whole."""
    sample = None
    try:
        for member in entries:
            name = _NAME.fullmatch(member.name)
            if not member.is_file or name is None or _OWN.match(member.name):
                continue
            key, suffix = name[1], name[2].lower()
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                sample = Group(key, member.start)
            if suffix in sample.parts:
                sample.twice = suffix
            sample.parts[suffix] = member
    except DamageError as damage:
        if sample is not None and not damage.behind_end:
            raise DamageError(sample.start, str(damage)) from damage
        if sample is not None:
            yield sample
        raise
    if sample is not None:
        yield sample


def _judge(stream: BinaryIO, sample: Group, findings: Findings) -> None:
    """Enter a sample as good or bad."""
    place = Member(sample.key, sample.start, sample.start, 0, True)
    try:
        place = _image(sample)
        label = _label(_text(stream, sample, b"cls"))
        boxes = _boxes(_text(stream, sample, b"json")) if b"json" in sample.parts else NO_BOXES
        crc = google_crc32c.value(content(stream, place))
        findings.good(place.offset, place.size, label, boxes, crc)
    except _BadSampleError as bad:
        findings.bad(place.offset, place.size, f"sample {_shown(sample.key)} {bad}", crc=0)


def _image(sample: Group) -> Member:
    images = [member for suffix, member in sample.parts.items() if suffix in IMAGES]
    if sample.twice is not None:
        raise _BadSampleError(f"has .{printable(sample.twice.decode(errors='replace'))} twice")
    if not images and b"pth" in sample.parts:
        raise _BadSampleError("is a tensor (.pth, pickle), which is never read")
    if len(images) != 1:
        raise _BadSampleError(f"has {len(images) or 'no'} image{'s' * (len(images) > 1)}")
    size = images[0].size
    if not 0 < size <= MAX_RECORD_BYTES:
        raise _BadSampleError(f"has an image of {size} bytes, it may have 1 … {MAX_RECORD_BYTES}")
    return images[0]


def _text(stream: BinaryIO, sample: Group, suffix: bytes) -> bytes:
    name = f".{suffix.decode()}"
    if suffix not in sample.parts:
        raise _BadSampleError(f"has no {name}")
    size = sample.parts[suffix].size
    if size > _MOST_TEXT_BYTES:
        raise _BadSampleError(f"has a {name} of {size} bytes, it may have {_MOST_TEXT_BYTES}")
    return content(stream, sample.parts[suffix])


def content(stream: BinaryIO, member: Member) -> bytes:
    stream.seek(member.offset)
    return stream.read(member.size)


def _label(text: bytes) -> int:
    if not _DIGITS.fullmatch(text):
        raise _BadSampleError(f"has the label {_shown(text)}, which is no number from 0 on")
    label = int(text)
    if label >= MOST_CLASSES:
        raise _BadSampleError(f"has the label {label}, known are 0 … {MOST_CLASSES - 1}")
    return label


def _boxes(text: bytes) -> Boxes:
    """`{"bbox": null}`, one box or several; other entries are of no concern here."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        raise _BadSampleError("has a .json that cannot be read") from None
    if not isinstance(table, dict):
        raise _BadSampleError("has a .json without names and values")
    rows = table.get("bbox")
    if not rows:
        return NO_BOXES
    if isinstance(rows, list) and not isinstance(rows[0], list):
        rows = [rows]
    if not isinstance(rows, list) or not all(_is_box(row) for row in rows):
        raise _BadSampleError("has a bbox that is no list of four numbers")
    boxes = np.array(rows, np.float32)
    for _, reason in box_problems(boxes):
        raise _BadSampleError(f"has the bbox {reason}")
    return with_area(boxes.clip(0, 1))


def _is_box(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and all(type(corner) in (int, float) and abs(corner) < _FAR for corner in row)
    )


def _shown(text: bytes) -> str:
    return shown(text.decode("utf-8", errors="replace"))
