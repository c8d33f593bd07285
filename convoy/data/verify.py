"""Reads every record of a data set, whatever its format, and lists all that is wrong."""

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from convoy.data.images.decode import ImageError, decode, read_header
from convoy.data.progress import (
    Progress,
    ProgressCallbacks,
    ProgressCounter,
    WorkerThreads,
    ignore,
)
from convoy.data.records import tar_reader, tfrecord
from convoy.data.records.folder import open_folder
from convoy.data.records.index import ShardFormat
from convoy.data.records.indexing import ScannedShard, join, scan_file, stored_checksums
from convoy.data.records.ledger import BadRecord, BadRecordError
from convoy.data.records.manifest import (
    NAME,
    WrittenPart,
    measure,
    read_class_names,
    read_parts,
    refuse_other_shards,
    refuse_unfinished,
)
from convoy.data.records.open import SPLITS, find_data, splits_in
from convoy.data.records.record import Records
from convoy.data.records.shards import ShardSet, find_shards, list_shards
from convoy.data.records.tar import Metadata, TarShards, check_tar_set, read_metadata
from convoy.data.records.tfrecord import TfRecords
from convoy.data.source import Split
from convoy.data.sources.cifar import CIFAR10, CIFAR100, CifarFormat, cifar10, cifar100
from convoy.errors import ConvoyError
from convoy.text import printable

Value = TypeVar("Value")

_FILES_AT_ONCE = 64  # that a thread takes


@dataclass
class SplitReport:
    """One split, or a part of it: how much was read, and everything that is wrong with it."""

    split: Split
    form: str
    files: int = 0
    records: int = 0
    bytes: int = 0
    bad: list[BadRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # of files, or of all of them together

    @property
    def is_good(self) -> bool:
        return not self.bad and not self.problems

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """An error in this block becomes one more problem."""
        try:
            yield
        except ConvoyError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))

    def attempt(self, read: Callable[[], Value], default: Value) -> Value:
        """The value; or the default and one more problem."""
        value = default
        with self.collecting():
            value = read()
        return value

    def add(self, part: "SplitReport") -> None:
        """Count a part of this split."""
        self.files += part.files
        self.records += part.records
        self.bytes += part.bytes
        self.bad += part.bad
        self.problems += part.problems

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Every fault, then the totals."""
        bad, problems = len(self.bad), len(self.problems)
        faults = [f"{bad:,} bad record{'s' * (bad != 1)}"] if bad else []
        faults += [f"{problems:,} other fault{'s' * (problems != 1)}"] if problems else []
        return [
            *self.problems,
            *map(str, self.bad),
            f"{self.split}: {self.records:,} records in {self.files:,} files, "
            f"{self.bytes / 1e6:,.1f} MB: {' and '.join(faults) or 'all good'}",
        ]


@dataclass(frozen=True)
class Scope:
    """What is to be read."""

    folder: Path
    split: Split | None = None  # None: all that are there
    workers: int = 1
    decoded: bool = True  # False: only the headers of images are checked


def verify(scope: Scope, callbacks: ProgressCallbacks) -> Iterator[SplitReport]:
    """One report a split; ConfigError if there is no data."""
    layout = _cifar_layout(scope.folder)
    if layout is not None:
        for split in [scope.split] if scope.split else SPLITS:
            yield _verify_cifar(scope.folder, layout, split)
        return
    with WorkerThreads(scope.workers) as threads:
        for split in [scope.split] if scope.split else splits_in(scope.folder):
            location = find_data(scope.folder, split)
            report = SplitReport(split, location.form)
            if location.form == "folder":
                _verify_folder(location.folder, report, scope, threads, callbacks)
            else:
                place = location.folder, split, location.form
                some = ShardSet(*place, tuple(list_shards(*place)))  # even if not a complete set
                shards = report.attempt(partial(find_shards, *place), some)
                _verify_shards(shards, report, scope, threads, callbacks.reading)
            with report.collecting():
                refuse_unfinished(location.folder)
            yield report


def _cifar_layout(folder: Path) -> CifarFormat | None:
    """The layout whose files are there, or in its own folder below."""
    for layout in (CIFAR10, CIFAR100):
        names = [name for names in layout.files.values() for name in names]
        if any(
            (home / name).is_file() for home in (folder, folder / layout.folder) for name in names
        ):
            return layout
    return None


def _verify_cifar(folder: Path, layout: CifarFormat, split: Split) -> SplitReport:
    """Its reader checks sizes, labels and copies."""
    report = SplitReport(split, layout.name)
    with report.collecting():
        source = (cifar10 if layout is CIFAR10 else cifar100)(folder, split)
        report.files = len(layout.files[split])
        report.records = len(source)
        report.bytes = len(source) * layout.record_bytes
    return report


def _check_records(
    records: Records, numbers: range, report: SplitReport, scope: Scope, threads: WorkerThreads
) -> int:
    """Read these records, and decode them if that is wanted; returns the bytes of their images."""
    total = 0
    for number in numbers:
        threads.check()
        try:
            encoded = records.read(number).encoded
            total += len(encoded)
            header = read_header(encoded)
            if scope.decoded:
                decode(encoded, header)
        except (ImageError, BadRecordError) as error:
            if isinstance(error, ImageError):
                error = BadRecordError(records.location(number), str(error))
            report.bad.append(BadRecord.of(error, report.split))
    return total


def _verify_folder(
    folder: Path, report: SplitReport, scope: Scope, threads: WorkerThreads, to: ProgressCallbacks
) -> None:
    with report.collecting():
        images = open_folder(folder, report.split)
        for remark in images.passed_over:
            to.notice(f"passed over: {remark}")
        counter = ProgressCounter(len(images), to.working)

        def check(numbers: range) -> SplitReport:
            part = SplitReport(report.split, "folder", len(numbers), len(numbers))
            part.bytes = _check_records(images, numbers, part, scope, threads)
            counter.add(len(numbers))
            return part

        every = range(len(images))
        starts = range(0, len(images), _FILES_AT_ONCE)
        for part in threads.run(check, [every[start : start + _FILES_AT_ONCE] for start in starts]):
            report.add(part)
    with report.collecting():
        parts = read_parts(folder, report.split) or {}
        found = threads.run(
            lambda name: _difference(folder / name, parts[name], "images"), sorted(parts)
        )
        report.problems += [problem for problem in found if problem]


def _difference(path: Path, part: WrittenPart, called: str) -> str | None:
    """How a file or folder differs from what the manifest lists."""
    found = measure(path)
    if found is None:
        return f"{path}: missing, {NAME} lists it with {part.records} {called}"
    if found != (part.bytes, part.sha256):
        return (
            f"{printable(str(path))}: not as it was written: {found[0]} bytes, {NAME} lists "
            f"{part.bytes} in {part.records} {called} with another sha256"
        )
    return None


def _verify_shards(
    shards: ShardSet, report: SplitReport, scope: Scope, threads: WorkerThreads, to: Progress
) -> None:
    """A set that is not complete does not keep its shards from being read."""
    folder, split = shards.folder, shards.split
    parts = report.attempt(lambda: read_parts(folder, split), None)
    with report.collecting():
        if parts is not None:
            refuse_other_shards(folder, parts, [path.name for path in shards.paths])
    metadata = _read_metadata(shards, report)
    checksums = stored_checksums(shards) if not report.problems else {}
    counter = ProgressCounter(
        sum(path.stat().st_size for path in shards.paths if path.is_file()), to
    )

    def check(path: Path) -> tuple[SplitReport, ScannedShard | None]:
        part, scanned = SplitReport(split, shards.kind), None
        with part.collecting():
            scanned = _scan(shards.kind, path, checksums)
            index = join(shards.kind, [scanned], ignore)
            records: Records = TarShards(folder, index, metadata)
            if shards.kind == "tfrecord":
                records = TfRecords(folder, index, metadata.class_names)
            part.files, part.records, part.bytes = 1, len(records), scanned[0].bytes
            _check_records(records, range(len(records)), part, scope, threads)
            counter.add(scanned[0].bytes)
            if parts is not None and path.name in parts:
                problem = _difference(path, parts[path.name], "records")
                part.problems += [problem] if problem else []
        return part, scanned

    found = threads.run(check, shards.paths)
    for part, _ in found:
        report.add(part)
    if shards.kind == "webdataset" and not report.problems:
        with report.collecting():
            index = join(shards.kind, [scanned for _, scanned in found if scanned], ignore)
            check_tar_set(folder, split, metadata, index)


def _read_metadata(shards: ShardSet, report: SplitReport) -> Metadata:
    """Of tar shards; the class names may be in the manifest."""
    metadata = Metadata()
    if shards.kind == "webdataset":
        metadata = report.attempt(lambda: read_metadata(shards.folder, shards.split), metadata)
    if not metadata.class_names:
        with report.collecting():
            metadata = replace(metadata, class_names=read_class_names(shards.folder))
    return metadata


def _scan(
    kind: ShardFormat, path: Path, checksums: Mapping[str, npt.NDArray[np.uint32]]
) -> ScannedShard:
    """Everything in a shard, with the checksums of a stored index if they are of these records."""
    scan = tfrecord.scan_shard if kind == "tfrecord" else tar_reader.scan_shard
    file, found = scan_file(scan, path)
    stored = checksums.get(path.name)
    if stored is not None and len(stored) == file.records:
        found.crc = array("I", stored.tolist())
    return file, found
