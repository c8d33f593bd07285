"""Read every record of a dataset in any format, and list every problem."""

from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.data.images.decode import decode, read_header
from convoy.data.progress import ProgressCallbacks, ProgressCounter, WorkerThreads
from convoy.data.records import manifest, tar_reader, tfrecord
from convoy.data.records.folder import open_folder
from convoy.data.records.index import ShardFormat
from convoy.data.records.index_builder import ScannedShard, join_scans, scan_file, stored_checksums
from convoy.data.records.ledger import BadRecord, BadRecordError
from convoy.data.records.manifest import MANIFEST_NAME
from convoy.data.records.open import SPLITS, available_splits, find_split
from convoy.data.records.record import Records, locate_errors
from convoy.data.records.shards import ShardSet, find_shards, list_shards
from convoy.data.records.tar import Metadata, TarShards, check_tar_shards, read_metadata
from convoy.data.records.tfrecord import TfRecords
from convoy.data.source import Split
from convoy.data.sources.cifar import CifarFormat, find_cifar_format, open_cifar
from convoy.errors import ConvoyError, DataError
from convoy.text import printable

_FILES_AT_ONCE = 64  # read by a thread in one task


@dataclass
class SplitReport:
    """The result for one split, or for a part of it: what was read, and every problem."""

    split: Split
    form: str  # of the data
    files: int = 0
    records: int = 0
    bytes: int = 0
    bad: list[BadRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # of files, or of the entire split

    @property
    def is_valid(self) -> bool:
        return not self.bad and not self.problems

    @contextmanager
    def collect_errors(self) -> Iterator[None]:
        """Add an error raised in this block to the problems."""
        try:
            yield
        except ConvoyError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))

    def add(self, part: "SplitReport") -> None:
        self.files += part.files
        self.records += part.records
        self.bytes += part.bytes
        self.bad += part.bad
        self.problems += part.problems

    def lines(self) -> list[str]:
        """Return one line per problem, then the totals."""
        bad, problems = len(self.bad), len(self.problems)
        counts = [_counted(bad, "bad record")] if bad else []
        counts += [_counted(problems, "other problem")] if problems else []
        return [
            *self.problems,
            *map(str, self.bad),
            f"{self.split}: {_counted(self.records, 'record')} in {_counted(self.files, 'file')}, "
            f"{self.bytes / 1e6:,.1f} MB: {' and '.join(counts) or 'all good'}",
        ]


def _counted(count: int, word: str) -> str:
    """`1 record`, `1,281,167 records`"""
    return f"{count:,} {word}{'s' * (count != 1)}"


@dataclass(frozen=True)
class VerifyRequest:
    folder: Path
    split: Split | None = None  # None: all that exist
    workers: int = 1
    decode: bool = True  # False: check only the headers of images


def verify(request: VerifyRequest, callbacks: ProgressCallbacks) -> Iterator[SplitReport]:
    """Yield one report per split; raise ConfigError if there is no data."""
    cifar_format = find_cifar_format(request.folder)
    if cifar_format is not None:
        for split in [request.split] if request.split else SPLITS:
            yield _verify_cifar(request.folder, cifar_format, split)
        return
    with WorkerThreads(request.workers) as threads:
        verifier = _Verifier(request, callbacks, threads)
        for split in [request.split] if request.split else available_splits(request.folder):
            yield verifier.verify_split(split)


def _verify_cifar(folder: Path, cifar_format: CifarFormat, split: Split) -> SplitReport:
    """Open the split; the reader checks sizes, labels and duplicates."""
    report = SplitReport(split, cifar_format.name)
    with report.collect_errors():
        source = open_cifar(cifar_format, folder, split)
        report.files = len(cifar_format.files[split])
        report.records = len(source)
        report.bytes = len(source) * cifar_format.record_bytes
    return report


@dataclass(frozen=True)
class _Verifier:
    request: VerifyRequest
    callbacks: ProgressCallbacks
    threads: WorkerThreads

    def verify_split(self, split: Split) -> SplitReport:
        location = find_split(self.request.folder, split)
        report = SplitReport(split, location.data_format)
        if location.data_format == "folder":
            self._verify_folder(location.folder, report)
        else:
            key = location.folder, split, location.data_format
            shards = ShardSet(*key, tuple(list_shards(*key)))  # even if incomplete
            with report.collect_errors():
                shards = find_shards(*key)
            self._verify_shards(shards, report)
        with report.collect_errors():
            manifest.check_finished(location.folder)
        return report

    def _check_records(self, records: Records, indices: range, report: SplitReport) -> int:
        """Read these records, decode them if requested, and return the bytes of their images."""
        total = 0
        for index in indices:
            self.threads.raise_if_stopped()
            try:
                encoded = records.read(index).encoded
                total += len(encoded)
                with locate_errors(records, index):
                    header = read_header(encoded)
                    if self.request.decode:
                        decode(encoded, header)
            except BadRecordError as error:
                report.bad.append(BadRecord.from_error(error, report.split))
        return total

    def _verify_folder(self, folder: Path, report: SplitReport) -> None:
        with report.collect_errors():
            images = open_folder(folder, report.split)
            for message in images.skipped_files:
                self.callbacks.on_notice(f"skipped: {message}")
            counter = ProgressCounter(len(images), self.callbacks.records_progress)

            def check(indices: range) -> SplitReport:
                part = SplitReport(report.split, report.form, len(indices), len(indices))
                part.bytes = self._check_records(images, indices, part)
                counter.add(len(indices))
                return part

            indices = range(len(images))
            chunks = [indices[i : i + _FILES_AT_ONCE] for i in indices[::_FILES_AT_ONCE]]
            for part in self.threads.run(check, chunks):
                report.add(part)
        with report.collect_errors():
            parts = manifest.read_parts(folder, report.split) or {}

            def compare(name: str) -> SplitReport:
                part = SplitReport(report.split, report.form)
                with part.collect_errors():
                    _compare_with_manifest(folder / name, parts[name], "images")
                return part

            for part in self.threads.run(compare, sorted(parts)):
                report.add(part)

    def _verify_shards(self, shards: ShardSet, report: SplitReport) -> None:
        """Verify all shards, even if the set is incomplete."""
        folder, split = shards.folder, shards.split
        parts = None
        with report.collect_errors():
            parts = manifest.read_parts(folder, split)
            if parts is not None:
                manifest.check_shard_names(folder, parts, [path.name for path in shards.paths])
        metadata = _read_metadata(shards, report)
        checksums = stored_checksums(shards) if not report.problems else {}
        total = sum(path.stat().st_size for path in shards.paths if path.is_file())
        counter = ProgressCounter(total, self.callbacks.bytes_progress)

        def check(path: Path) -> tuple[SplitReport, ScannedShard | None]:
            part, scanned = SplitReport(split, report.form), None
            with part.collect_errors():
                scanned = _scan_shard(shards.shard_format, path, checksums)
                records = _open_shard(shards, scanned, metadata)
                part.files, part.records, part.bytes = 1, len(records), scanned[0].bytes
                self._check_records(records, range(len(records)), part)
                counter.add(scanned[0].bytes)
                if parts is not None and path.name in parts:
                    _compare_with_manifest(path, parts[path.name], "records")
            return part, scanned

        results = self.threads.run(check, shards.paths)
        for part, _ in results:
            report.add(part)
        if shards.shard_format == "webdataset" and not report.problems:
            with report.collect_errors():
                index = join_scans("webdataset", [scanned for _, scanned in results if scanned])
                check_tar_shards(folder, split, metadata, index)


def _compare_with_manifest(path: Path, part: manifest.WrittenPart, unit: str) -> None:
    """Raise DataError if a file or folder differs from the manifest."""
    measured = manifest.size_and_sha256(path)
    if measured is None:
        raise DataError(f"{path}: missing, but {MANIFEST_NAME} lists it with {part.records} {unit}")
    if measured != (part.bytes, part.sha256):
        raise DataError(
            f"{printable(str(path))}: changed since it was written: {measured[0]} bytes, but "
            f"{MANIFEST_NAME} lists {part.bytes} in {part.records} {unit} with a different sha256"
        )


def _open_shard(shards: ShardSet, scanned: ScannedShard, metadata: Metadata) -> Records:
    index = join_scans(shards.shard_format, [scanned])
    if shards.shard_format == "tfrecord":
        return TfRecords(shards.folder, index, metadata.class_names)
    return TarShards(shards.folder, index, metadata)


def _read_metadata(shards: ShardSet, report: SplitReport) -> Metadata:
    """Read the metadata of tar shards; the class names may be in the manifest."""
    metadata = Metadata()
    if shards.shard_format == "webdataset":
        with report.collect_errors():
            metadata = read_metadata(shards.folder, shards.split)
    if not metadata.class_names:
        with report.collect_errors():
            metadata = replace(metadata, class_names=manifest.read_class_names(shards.folder))
    return metadata


def _scan_shard(
    shard_format: ShardFormat, path: Path, checksums: Mapping[str, npt.NDArray[np.uint32]]
) -> ScannedShard:
    """Scan a shard, with the checksums of a stored index if they match its records."""
    scan = tfrecord.scan_shard if shard_format == "tfrecord" else tar_reader.scan_shard
    file, scanned = scan_file(scan, path)
    stored = checksums.get(path.name)
    if stored is not None and len(stored) == file.records:
        scanned.crc = array("I", stored.tolist())
    return file, scanned
