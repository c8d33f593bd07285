"""Convert images between formats, preserving order, bytes, labels, boxes and names.

Besides the parts, write the small files that readers of each format expect, and the manifest.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from convoy.data.convert.plan import (
    SYNSET_FILE_NAME,
    ConversionPlan,
    ConversionRequest,
    ConversionSource,
    TargetPart,
    open_conversion_source,
    plan_conversion,
)
from convoy.data.progress import ProgressCallbacks, ProgressCounter, WorkerThreads
from convoy.data.records import manifest, tar, tfrecord
from convoy.data.records.folder import BOX_FILE_NAME
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.manifest import Journal, SkippedRecord, WrittenPart
from convoy.data.records.record import MAX_RECORD_BYTES, UNKNOWN_LABEL, Sample
from convoy.data.records.tar import METADATA_NAME
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError, StorageError
from convoy.files import atomic_path
from convoy.text import pluralize

_MAX_SHOWN = 100  # bad records listed in an error; `convoy data verify` lists all
_FIELD_BYTES = 2**16  # allowed in a record besides its image
_TEMPORARY = ".*.tmp-*"

WrittenParts = Mapping[Split, list[WrittenPart]]


@dataclass(frozen=True)
class ConversionResult:
    records: Mapping[Split, int]
    parts: int
    skipped: tuple[str, ...]  # messages about bad records


def convert(request: ConversionRequest, callbacks: ProgressCallbacks) -> ConversionResult:
    """Convert everything, or raise an error without leaving an incomplete part."""
    if request.target.resolve().is_relative_to(request.source.resolve()):
        raise ConfigError(
            f"{request.target}: inside the source {request.source}; choose a folder outside of it"
        )
    source = open_conversion_source(request.source, request.split, callbacks)
    plan = plan_conversion(request, source, callbacks.on_notice)
    identity = plan.identity(request, source)
    bad_records = BadRecordLimit(request.max_bad_records)
    bad_records.add_known_bad(source)
    try:
        with (
            manifest.open_journal(request.target, identity) as journal,
            WorkerThreads(request.workers) as threads,
        ):
            _remove_temporary(request.target)
            records = sum(len(part.record_ids) for part in plan.parts)
            counter = ProgressCounter(records, callbacks.records_progress)
            conversion = _Conversion(request, source, plan, bad_records, journal, counter, threads)
            written = conversion.write_parts()
            conversion.write_metadata_files(written, identity)
            (request.target / manifest.JOURNAL_NAME).unlink()
    except OSError as error:
        raise StorageError(
            f"{error.filename or request.target}: {error.strerror}; finished parts are kept. Run "
            "the same command to continue"
        ) from error
    return ConversionResult(
        records={split: _count_records(parts) for split, parts in written.items()},
        parts=sum(map(len, written.values())),
        skipped=tuple(bad_records.messages()),
    )


class BadRecordLimit:
    """Count bad records, each once, from any thread."""

    def __init__(self, max_bad_records: int | None) -> None:
        """With None, any bad record is an error, raised when all of them are known."""
        self._limit = max_bad_records
        self._messages: dict[tuple[Split, int], str] = {}
        self._lock = Lock()

    def messages(self) -> list[str]:
        """Return all messages, in the order of the source."""
        return [self._messages[key] for key in sorted(self._messages)]

    def add(self, split: Split, bad: SkippedRecord) -> None:
        """Add a bad record; raise DataError if that exceeds the limit."""
        with self._lock:
            self._messages[split, bad.number] = bad.says
            if self._limit is not None and len(self._messages) > self._limit:
                raise self._error(f", --max-bad-records allows {self._limit}")

    def add_known_bad(self, source: ConversionSource) -> None:
        """Add the records found to be bad when the shards were indexed."""
        for split, records in source.splits.items():
            for number in np.flatnonzero(records.labels == UNKNOWN_LABEL).tolist():
                try:
                    records.read(number)
                except BadRecordError as error:
                    self.add(split, SkippedRecord(number, str(error)))
        self.raise_if_any()

    def raise_if_any(self) -> None:
        if self._messages and self._limit is None:
            raise self._error(" in the source; use --bad-records skip to leave them out")

    def _error(self, problem: str) -> DataError:
        lines = [f"  {message}" for message in self.messages()]
        if len(lines) > _MAX_SHOWN:
            lines[_MAX_SHOWN:] = [f"  and {len(lines) - _MAX_SHOWN} more"]
        listed = "\n".join(lines)
        return DataError(f"{pluralize(len(self._messages), 'bad record')}{problem}:\n{listed}")


class _EmptyPartError(Exception):
    """A part without a good record, which is not written."""


@dataclass(frozen=True)
class _Conversion:
    request: ConversionRequest
    source: ConversionSource
    plan: ConversionPlan
    bad_records: BadRecordLimit
    journal: Journal
    counter: ProgressCounter
    threads: WorkerThreads

    def write_parts(self) -> WrittenParts:
        """Write all parts that do not exist yet; raise DataError at the end for bad records."""
        parts = self.threads.run(self._write_part, self.plan.parts)
        self.bad_records.raise_if_any()
        written: dict[Split, list[WrittenPart]] = {split: [] for split in self.source.splits}
        for target, part in zip(self.plan.parts, parts, strict=True):
            assert part is not None, "only bad records prevent a part from being written"
            written[target.split].append(part)
        return written

    def _write_part(self, part: TargetPart) -> WrittenPart | None:
        """Write one part; return None if it has no good record."""
        path = self.request.target / part.name
        known = self.journal.done.get(part.name)
        if known is not None and manifest.size_and_sha256(path) == (known.bytes, known.sha256):
            for bad in known.left_out:
                self.bad_records.add(part.split, bad)
            self.counter.add(len(part.record_ids))
            return known
        left_out: list[SkippedRecord] = []
        samples = self._samples(part, left_out)
        try:
            if self.request.data_format == "tfrecord":
                records = tfrecord.write_shard(path, samples)
            elif self.request.data_format == "webdataset":
                records = tar.write_shard(path, samples, part.first_position)
            else:
                records = _write_folder(path, samples)
        except _EmptyPartError:
            return None
        measured = manifest.size_and_sha256(path)
        assert measured is not None, "the part was just written"
        written = WrittenPart(part.name, *measured, records, tuple(left_out))
        self.journal.add(written)
        return written

    def _samples(self, part: TargetPart, left_out: list[SkippedRecord]) -> Iterator[Sample]:
        """Yield the samples of a part, except bad ones, which are added to `left_out`."""
        names = self.plan.names[part.split][1] if self.plan.names else None
        for position, number in enumerate(part.record_ids.tolist(), start=part.first_position):
            self.threads.raise_if_stopped()
            try:
                sample = self.source.sample(part.split, number)
                size = len(sample.encoded)
                is_tfrecord = self.request.data_format == "tfrecord"
                if is_tfrecord and size > MAX_RECORD_BYTES - _FIELD_BYTES:
                    location = self.source.splits[part.split].location(number)
                    raise BadRecordError(location, f"{size} bytes, too large for a TFRecord")
            except BadRecordError as error:
                left_out.append(SkippedRecord(number, str(error)))
                self.bad_records.add(part.split, left_out[-1])
            else:
                filename = sample.filename if names is None else os.fsdecode(names[position])
                yield replace(sample, filename=filename)
            self.counter.add(1)
        is_empty = 0 < len(left_out) == len(part.record_ids)
        if is_empty and self.request.data_format != "folder":
            if self.request.max_bad_records is None:
                raise _EmptyPartError
            raise DataError(
                f"{part.name} would be empty: {pluralize(len(left_out), 'record')}, all of them "
                "bad; use larger shards"
            )

    def write_metadata_files(self, written: WrittenParts, identity: Mapping[str, Any]) -> None:
        """Write the files that readers of each format expect; last, the manifest with checksums."""
        target, data_format, source = self.request.target, self.request.data_format, self.source
        if source.synset_file.is_file():
            _write(target / SYNSET_FILE_NAME, source.synset_file.read_bytes())
        if data_format == "webdataset":
            _write_json(target / METADATA_NAME, self._metadata(written))
        if data_format == "folder":
            self._write_boxes(written)
            os.sync()
        table = {
            "format": data_format,
            "class_names": source.class_names,
            "conversion": identity,
            "splits": {
                split: {"records": _count_records(parts), "shards": list(map(asdict, parts))}
                for split, parts in written.items()
            },
        }
        _write_json(target / manifest.MANIFEST_NAME, table)

    def _metadata(self, written: WrittenParts) -> dict[str, Any]:
        """Build `metadata.json`, as the reference's reader of tar shards expects it."""
        checksums = "".join(part.sha256 for parts in written.values() for part in parts)
        return {
            **{f"{split}_length": _count_records(parts) for split, parts in written.items()},
            "format": "img",
            "shuffle": self.request.shuffle is not None,
            **{f"{split}_transform_pipeline": [] for split in written},
            "seed": self.request.shuffle,
            "image_quality": None,  # no image was re-encoded
            "checksum": hashlib.sha256(checksums.encode()).hexdigest(),
            "class_names": self.source.class_names,
        }

    def _write_boxes(self, written: WrittenParts) -> None:
        """Write the file of boxes beside class folders, if any image has one."""
        rows = []
        for split, (record_ids, names) in self.plan.names.items():
            records = self.source.splits[split]
            left_out = {bad.number for part in written[split] for bad in part.left_out}
            for number, name in zip(record_ids.tolist(), names, strict=True):
                for box in records.boxes(number) if number not in left_out else ():
                    rows.append(name + b"," + ",".join(map(_format_corner, box)).encode() + b"\n")
        if rows:
            _write(self.request.target / BOX_FILE_NAME, b"".join(rows))


def _write_folder(path: Path, samples: Iterable[Sample]) -> int:
    """Write one file per sample; the folder gets its final name when it is complete."""
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    count = 0
    try:
        temporary.mkdir(parents=True)
        for sample in samples:
            (temporary / sample.filename).write_bytes(sample.encoded)
            count += 1
        if path.exists():
            shutil.rmtree(path)  # damaged or outdated
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def _remove_temporary(target: Path) -> None:
    for path in [*target.glob(_TEMPORARY), *target.glob(f"*/{_TEMPORARY}")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _write_json(path: Path, table: dict[str, Any]) -> None:
    _write(path, json.dumps(table, indent=1).encode())


def _count_records(parts: Iterable[WrittenPart]) -> int:
    return sum(part.records for part in parts)


def _format_corner(corner: np.float32) -> str:
    """Format a number as short as possible such that it is read back exactly."""
    short = np.format_float_positional(corner, trim="0")
    return short if np.float32(float(short)) == corner else repr(float(corner))
