"""Images in tar shards (WebDataset): reading by index, writing, and their `metadata.json`."""

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from convoy.data.progress import ProgressCallbacks
from convoy.data.records import tar_reader
from convoy.data.records.index import MAX_CLASSES, Index
from convoy.data.records.index_builder import open_index
from convoy.data.records.manifest import read_json
from convoy.data.records.record import BadContentError, PackedNames, Sample
from convoy.data.records.shards import ShardedRecords, find_shards
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError
from convoy.files import atomic_path
from convoy.text import quote_shortened

METADATA_NAME = "metadata.json"
FILENAME_KEY = "filename"  # in the .json of a sample; not part of the reference format


@dataclass(frozen=True)
class Metadata:
    """The contents of `metadata.json` for one split; everything is optional."""

    length: int | None = None
    applied_transforms: tuple[str, ...] = ()  # before saving the images, such as `Resize(256)`
    class_names: tuple[str, ...] = ()


def read_metadata(folder: Path, split: Split) -> Metadata:
    path = folder / METADATA_NAME
    if not path.exists():
        return Metadata()
    try:
        table = read_json(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}); correct or remove it") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: not a JSON object; correct or remove it")
    if table.get("format", "img") != "img":
        raise ConfigError(
            f"{path}: samples in the format {quote_shortened(str(table['format']))} are pickled "
            "tensors, which can run arbitrary code when they are loaded; recreate the shards with "
            "images (format img), or run `convoy data convert` on the original folder"
        )
    length = table.get(f"{split}_length")
    if length is not None and (type(length) is not int or length < 0):
        raise DataError(
            f"{path}: {split}_length is {quote_shortened(str(length))}, not a number of samples"
        )
    names = _string_list(path, table, "class_names")
    if len(set(names)) < len(names) or len(names) > MAX_CLASSES:
        raise DataError(
            f"{path}: {len(names)} class_names, {len(set(names))} of them distinct; they must "
            f"be distinct, and at most {MAX_CLASSES}"
        )
    return Metadata(length, _string_list(path, table, f"{split}_transform_pipeline"), names)


def _string_list(path: Path, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = [] if table.get(key) is None else table[key]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"{path}: {key} is not a list of strings")
    return tuple(value)


class TarShards(ShardedRecords):
    """One split, in the order (shard name, position). Created by `open_tar_shards`."""

    class_names_file = METADATA_NAME

    def __init__(self, folder: Path, index: Index, metadata: Metadata) -> None:
        super().__init__(folder, index, metadata.class_names)
        self.applied_transforms = metadata.applied_transforms
        self._names: dict[str, PackedNames] = {}  # by shard, read on first use

    def _read_image(self, index: int) -> bytes:
        raw = self._raw(index)
        if google_crc32c.value(raw) != self._index.crc[index]:
            raise BadContentError("the image has changed since it was indexed: checksum mismatch")
        return raw

    def filename_and_text(self, index: int) -> tuple[str, str]:
        shard = self._shard_file(index).name
        if shard not in self._names:  # two threads may both read them, with the same result
            self._names[shard] = read_names(self._folder / shard)
        return os.fsdecode(self._names[shard][self._index.index_in_file(index)]), ""


def read_names(path: Path) -> PackedNames:
    """Read the file names of all samples, in order; only headers and small members are read."""
    names = PackedNames()
    with path.open("rb", buffering=2**12) as stream:
        try:
            members = tar_reader.iter_members(stream, stream.seek(0, os.SEEK_END))
            for sample in tar_reader.iter_samples(members):
                suffix = next(filter(tar_reader.IMAGE_EXTENSIONS.__contains__, sample.parts), b"")
                key = sample.key.rpartition(b"/")[2]  # without folders
                names.append(_filename_from_json(stream, sample) or key + b"." + suffix)
        except tar_reader.CorruptTarError:
            names.append(b"")  # the rest of a damaged shard is one bad record
    return names


def _filename_from_json(stream: BinaryIO, sample: tar_reader.TarSample) -> bytes:
    try:
        return os.fsencode(json.loads(tar_reader.read_text(stream, sample, b"json"))[FILENAME_KEY])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return b""


def open_tar_shards(folder: Path, split: Split, callbacks: ProgressCallbacks) -> TarShards:
    """Open one split, indexing it if necessary."""
    metadata = read_metadata(folder, split)
    shards = find_shards(folder, split, "webdataset")
    index = open_index(shards, tar_reader.scan_shard, callbacks)
    check_tar_shards(folder, split, metadata, index)
    return TarShards(folder, index, metadata)


def check_tar_shards(folder: Path, split: Split, metadata: Metadata, index: Index) -> None:
    """Raise DataError if a shard lacks samples, or repeats those of another shard."""
    # Visible damage is left to the policy for bad records, which counts it.
    if metadata.length not in (None, len(index)) and not index.faults:
        raise DataError(
            f"{folder}: {len(index)} samples in the {split} shards, but {METADATA_NAME} has "
            f"{split}_length {metadata.length}; a shard is missing or incomplete: copy the shards "
            f"again, or correct {METADATA_NAME}"
        )
    seen: dict[bytes, str] = {}
    start = 0
    for file in index.files:
        records = slice(start, start + file.records)
        start += file.records
        images = index.size[records].tobytes() + index.crc[records].tobytes()
        if not index.crc[records].any():  # only bad records
            continue
        if images in seen:
            raise DataError(
                f"{folder}: {seen[images]} and {file.name} contain the same {file.records} images; "
                "replace one of them"
            )
        seen[images] = file.name


def write_shard(path: Path, samples: Iterable[Sample], first: int) -> int:
    """Write samples numbered from `first`, and return their count."""
    count = 0
    with (
        atomic_path(path) as temporary,
        tarfile.open(temporary, mode="x", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for count, sample in enumerate(samples, start=1):
            for suffix, data in sorted(_sample_members(sample)):
                member = tarfile.TarInfo(f"{first + count - 1:09}.{suffix}")  # mtime 0, owner root
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return count


def _sample_members(sample: Sample) -> Iterator[tuple[str, bytes]]:
    boxes = sample.boxes.tolist()  # float64, which represents float32 exactly
    yield "jpg" if sample.image_format == "jpeg" else sample.image_format, sample.encoded
    yield "cls", str(sample.label).encode()
    table = {"bbox": boxes[0] if len(boxes) == 1 else boxes or None, FILENAME_KEY: sample.filename}
    yield "json", json.dumps(table).encode()
