"""One shard, from its first byte to its last: frames, fields, images, and the checksum of all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from convoy.config.user_text import printable
from convoy.data.hearing import Tally
from convoy.data.records import frames, tar_scan, tfrecord
from convoy.data.records.example import BadExampleError
from convoy.data.records.frames import FrameError
from convoy.data.records.index import IndexedFile, Kind
from convoy.data.records.indexing import look
from convoy.data.records.ledger import BadRecord
from convoy.data.records.manifest import NAME, Told
from convoy.data.records.record import UNKNOWN, BadRecordError, Spot
from convoy.data.records.sample import read_image
from convoy.data.records.scan import ShardScan
from convoy.data.source import Split
from convoy.data.verify.images import fault_of
from convoy.data.whole_files import measure
from convoy.errors import DataError

_SCANS: dict[Kind, Callable[[Path], ShardScan]] = {
    "tfrecord": tfrecord.scan_shard,
    "webdataset": tar_scan.scan_shard,
}


class StoppedError(Exception):
    """Somebody has interrupted all of it."""


@dataclass(frozen=True)
class Rules:
    """What every shard of a split is held against."""

    kind: Kind
    split: Split
    classes: int | None  # None: nobody says how many
    decoded: bool
    stopped: Callable[[], bool]
    kept: Mapping[str, npt.NDArray[np.uint32]]  # checksums of images, by shard, in an index


@dataclass
class ShardReport:
    """What one shard holds."""

    file: IndexedFile | None = None
    scan: ShardScan | None = None
    bad: list[BadRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_shard(path: Path, rules: Rules, told: Told | None, tally: Tally) -> ShardReport:
    """Everything that is wrong with a shard; nothing ends it early but an interruption."""
    report = ShardReport()
    name = printable(str(path))
    try:
        before = look(path)
        scan = report.scan = _SCANS[rules.kind](path)
        report.file = IndexedFile(path.name, before.bytes, before.mtime_ns, len(scan.label))
        for number, reason in _faults(path, scan, rules, tally):
            spot = Spot(name, int(scan.offset[number]), number)
            report.bad.append(BadRecord.of(BadRecordError(spot, reason), rules.split))
        if told is not None:
            report.problems += _differences(path, told, report.file)
    except DataError as error:
        report.problems.append(str(error))
    except (FrameError, BadExampleError):  # what was good a moment ago
        report.problems.append(f"{name}: changed while it was read")
    except OSError as error:
        report.problems.append(f"{name}: cannot be read: {error.strerror}")
    return report


def _faults(path: Path, scan: ShardScan, rules: Rules, tally: Tally) -> Iterator[tuple[int, str]]:
    """Number and reason of every bad record."""
    reasons, kept = dict(scan.faults), rules.kept.get(path.name)
    if kept is not None and len(kept) != len(scan.label):
        kept = None  # its faults are others now, and are told
    with path.open("rb") as file:
        tally.add(path.stat().st_size - int(scan.size.sum()))  # what is no record
        for number, label in enumerate(scan.label.tolist()):
            if rules.stopped():
                raise StoppedError
            tally.add(int(scan.size[number]))
            fault: str | None
            if label == UNKNOWN:
                fault = reasons.get(number, "bad, like many others before it")
            elif rules.classes is not None and label >= rules.classes:
                fault = f"class {label} (the first is 0), {rules.classes} have a name"
            elif kept is not None and kept[number] != scan.crc[number]:
                fault = "not the image that was indexed: another checksum"
            else:
                place = int(scan.offset[number]), int(scan.size[number])
                fault = fault_of(_image(file, rules.kind, *place), decoded=rules.decoded)
            if fault is not None:
                yield number, fault


def _image(file: BinaryIO, kind: Kind, offset: int, size: int) -> bytes | memoryview:
    """The image of a record that was good a moment ago."""
    file.seek(offset)
    taken = file.read(size)
    if kind == "webdataset":
        return taken
    return read_image(frames.unframed(np.frombuffer(taken, np.uint8)).data)


def _differences(path: Path, told: Told, file: IndexedFile) -> Iterator[str]:
    found = measure(path)
    if found is None or (found.bytes, found.sha256) != (told.bytes, told.sha256):
        yield (
            f"{printable(str(path))}: not as it was written: {file.records} records in "
            f"{file.bytes} bytes, {NAME} lists {told.records} in {told.bytes} with another sha256"
        )
