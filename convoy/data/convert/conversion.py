"""Images from any format into any other: order, bytes, labels, boxes and names stay the same.

Beside the parts are the small files that readers of each format look for, and the manifest.
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
    CLASS_WORDS,
    ConversionPlan,
    ConversionRequest,
    ConversionSource,
    TargetPart,
    open_conversion_source,
    plan_conversion,
)
from convoy.data.progress import Progress, ProgressCallbacks, ProgressCounter, WorkerThreads
from convoy.data.records import tar, tfrecord
from convoy.data.records.folder import FILE_NAME
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.manifest import (
    JOURNAL,
    NAME,
    Journal,
    LeftOut,
    WrittenPart,
    measure,
    open_journal,
)
from convoy.data.records.record import MAX_RECORD_BYTES, UNKNOWN, Sample
from convoy.data.records.tar import METADATA
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError, StorageError
from convoy.files import atomic_path
from convoy.text import counted

_SHOWN = 100  # bad records that an error lists; `convoy data verify` lists all
_FIELD_BYTES = 2**16  # that a record may have beside its image
_TEMPORARY = ".*.tmp-*"


Written = Mapping[Split, list[WrittenPart]]


@dataclass(frozen=True)
class ConversionResult:
    """What was written."""

    records: Mapping[Split, int]
    parts: int
    bytes: int
    left_out: tuple[str, ...]  # messages about bad records


def convert(request: ConversionRequest, callbacks: ProgressCallbacks) -> ConversionResult:
    """All of it, or an error that leaves no incomplete part."""
    if request.target.resolve().is_relative_to(request.source.resolve()):
        raise ConfigError(
            f"{request.target}: lies inside {request.source}, which is read; name a folder outside "
            "of it"
        )
    source = open_conversion_source(request.source, request.split, callbacks)
    plan = plan_conversion(request, source, callbacks.notice)
    identity = plan.identity(request, source)
    bad = BadRecordLimit(request.most_bad)
    bad.add_known(source)
    try:
        with open_journal(request.target, identity) as journal:
            _remove_temporary(request.target)
            writer = _PartWriter(request, source, plan, bad, journal, callbacks.working)
            written = writer.write_all()
            if source.words_file.is_file():
                _write(request.target / CLASS_WORDS, source.words_file.read_bytes())
            if request.form == "webdataset":
                _write_json(request.target / METADATA, _metadata(request, source, written))
            if request.form == "folder":
                _write_boxes(request.target, source, plan, written)
                os.sync()
            _write_json(request.target / NAME, _manifest(request, source, identity, written))
            (request.target / JOURNAL).unlink()
    except OSError as error:
        raise StorageError(
            f"{error.filename or request.target}: {error.strerror}; finished parts are kept. Run "
            "the same command to continue"
        ) from error
    parts = [part for parts in written.values() for part in parts]
    return ConversionResult(
        records={split: _count_records(parts) for split, parts in written.items()},
        parts=len(parts),
        bytes=sum(part.bytes for part in parts),
        left_out=tuple(text for split in source.splits for text in bad.messages(split)),
    )


class BadRecordLimit:
    """Counts bad records, each once, from any thread."""

    def __init__(self, most: int | None) -> None:
        """With None every bad record is an error, raised when all are known."""
        self._most = most
        self._found: dict[tuple[Split, int], str] = {}
        self._lock = Lock()

    def messages(self, split: Split) -> list[str]:
        """In the order of the source."""
        return [self._found[key] for key in sorted(self._found) if key[0] == split]

    def add(self, split: Split, bad: LeftOut) -> None:
        """DataError if this one is too many."""
        with self._lock:
            self._found[split, bad.number] = bad.says
            if self._most is not None and len(self._found) > self._most:
                raise self._error(f", --max-bad-records allows {self._most}")

    def add_known(self, source: ConversionSource) -> None:
        """Those that were found when the shards were indexed."""
        for split, records in source.splits.items():
            for number in np.flatnonzero(records.labels == UNKNOWN).tolist():
                try:
                    records.read(number)
                except BadRecordError as error:
                    self.add(split, LeftOut(number, str(error)))
        self.refuse_any()

    def refuse_any(self) -> None:
        if self._found and self._most is None:
            raise self._error(" in the source; --bad-records skip leaves them out")

    def _error(self, problem: str) -> DataError:
        lines = [f"  {self._found[key]}" for key in sorted(self._found)]
        if len(lines) > _SHOWN:
            lines[_SHOWN:] = [f"  and {len(lines) - _SHOWN} more"]
        listed = "\n".join(lines)
        return DataError(f"{counted(len(self._found), 'bad record')}{problem}:\n{listed}")


class _EmptyPartError(Exception):
    """A part without a good record is not written."""


class _PartWriter:
    def __init__(
        self,
        request: ConversionRequest,
        source: ConversionSource,
        plan: ConversionPlan,
        bad: BadRecordLimit,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self.request, self.source, self.plan = request, source, plan
        self.bad, self.journal = bad, journal
        self.counter = ProgressCounter(sum(len(part.numbers) for part in plan.parts), progress)
        self.threads = WorkerThreads(request.workers)

    def write_all(self) -> Written:
        """All parts that are not there yet; DataError at the end for bad records."""
        with self.threads:
            parts = self.threads.run(self.write, self.plan.parts)
        self.bad.refuse_any()
        written: dict[Split, list[WrittenPart]] = {split: [] for split in self.source.splits}
        for target, part in zip(self.plan.parts, parts, strict=True):
            assert part is not None, "only bad records keep a part from being written"
            written[target.split].append(part)
        return written

    def write(self, part: TargetPart) -> WrittenPart | None:
        """None for a part without a good record."""
        path = self.request.target / part.name
        known = self.journal.done.get(part.name)
        if known is not None and known.matches(path):
            for bad in known.left_out:
                self.bad.add(part.split, bad)
            self.counter.add(len(part.numbers))
            return known
        left_out: list[LeftOut] = []
        samples = self._samples(part, left_out)
        try:
            if self.request.form == "tfrecord":
                records = tfrecord.write_shard(path, samples)
            elif self.request.form == "webdataset":
                records = tar.write_shard(path, samples, part.first)
            else:
                records = _write_folder(path, samples)
        except _EmptyPartError:
            return None
        measured = measure(path)
        assert measured is not None, "it was written a moment ago"
        written = WrittenPart(part.name, *measured, records, tuple(left_out))
        self.journal.add(written)
        return written

    def _samples(self, part: TargetPart, left_out: list[LeftOut]) -> Iterator[Sample]:
        """All of a part but its bad ones, which are added to `left_out`."""
        names = self.plan.names[part.split][1] if self.plan.names else None
        for position, number in enumerate(part.numbers.tolist(), start=part.first):
            self.threads.check()
            try:
                sample = self._sample(part.split, number)
            except BadRecordError as error:
                left_out.append(LeftOut(number, str(error)))
                self.bad.add(part.split, left_out[-1])
            else:
                filename = sample.filename if names is None else os.fsdecode(names[position])
                yield replace(sample, filename=filename)
            self.counter.add(1)
        if left_out and len(left_out) == len(part.numbers) and self.request.form != "folder":
            if self.request.most_bad is None:
                raise _EmptyPartError
            raise DataError(
                f"{part.name} would be empty: all of its {len(left_out)} records are bad; make "
                "larger shards"
            )

    def _sample(self, split: Split, number: int) -> Sample:
        sample = self.source.sample(split, number)
        size = len(sample.encoded)
        if size > MAX_RECORD_BYTES - _FIELD_BYTES and self.request.form == "tfrecord":
            location = self.source.splits[split].location(number)
            raise BadRecordError(location, f"{size} bytes, too many for a TFRecord")
        return sample


def _write_folder(path: Path, samples: Iterable[Sample]) -> int:
    """One file a sample; the folder gets its name when it is complete."""
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    count = 0
    try:
        temporary.mkdir(parents=True)
        for sample in samples:
            (temporary / sample.filename).write_bytes(sample.encoded)
            count += 1
        if path.exists():
            shutil.rmtree(path)  # an older one that was not right
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


def _metadata(
    request: ConversionRequest, source: ConversionSource, written: Written
) -> dict[str, Any]:
    """`metadata.json`, as the reference's reader wants it beside tar shards."""
    sums = "".join(part.sha256 for parts in written.values() for part in parts)
    return {
        **{f"{split}_length": _count_records(parts) for split, parts in written.items()},
        "format": "img",
        "shuffle": request.shuffle is not None,
        **{f"{split}_transform_pipeline": [] for split in written},
        "seed": request.shuffle,
        "image_quality": None,  # no image was encoded again
        "checksum": hashlib.sha256(sums.encode()).hexdigest(),
        "class_names": source.class_names,
    }


def _manifest(
    request: ConversionRequest,
    source: ConversionSource,
    identity: Mapping[str, Any],
    written: Written,
) -> dict[str, Any]:
    """What was written, with checksums; last of all."""
    return {
        "format": request.form,
        "class_names": source.class_names,
        "conversion": identity,
        "splits": {
            split: {"records": _count_records(parts), "shards": [asdict(part) for part in parts]}
            for split, parts in written.items()
        },
    }


def _count_records(parts: Iterable[WrittenPart]) -> int:
    return sum(part.records for part in parts)


def _write_boxes(
    target: Path, source: ConversionSource, plan: ConversionPlan, written: Written
) -> None:
    """The table of boxes beside class folders, if any image has one."""
    rows = []
    for split, (numbers, names) in plan.names.items():
        left_out = {bad.number for part in written[split] for bad in part.left_out}
        for number, name in zip(numbers.tolist(), names, strict=True):
            for box in source.splits[split].boxes(number) if number not in left_out else ():
                rows.append(name + b"," + ",".join(map(_text, box)).encode() + b"\n")
    if rows:
        _write(target / FILE_NAME, b"".join(rows))


def _text(corner: np.float32) -> str:
    """As short as possible, but read as the same number again."""
    short = np.format_float_positional(corner, trim="0")
    return short if np.float32(float(short)) == corner else repr(float(corner))
