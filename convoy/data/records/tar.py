"""Images in tar shards (WebDataset): `metadata.json` beside them, reading by number, writing."""

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from convoy.data.progress import Notice, Progress
from convoy.data.records.index import MOST_CLASSES, Index
from convoy.data.records.indexing import open_index
from convoy.data.records.record import BadContentError, PackedNames, Sample
from convoy.data.records.shards import ShardedRecords, find_shards
from convoy.data.records.tar_reader import (
    IMAGES,
    DamageError,
    TarSample,
    members,
    samples,
    scan_shard,
    take,
)
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError
from convoy.files import atomic_path
from convoy.text import shown

METADATA = "metadata.json"
FILE_NAME = "filename"  # key in the .json of a sample; the reference has none for it

_MOST_METADATA_BYTES = 2**24
_MOST_JSON_BYTES = 2**20
# By how an image begins; others are called .jpg, and the decoder finds out.
_SUFFIXES = {
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


@dataclass(frozen=True)
class Metadata:
    """What `metadata.json` says about one split; all of it may be missing."""

    length: int | None = None
    steps_done: tuple[str, ...] = ()  # such as `Resize(256)`, applied before the images were saved
    class_names: tuple[str, ...] = ()


def read_metadata(folder: Path, split: Split) -> Metadata:
    path = folder / METADATA
    if not path.exists():
        return Metadata()
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(_MOST_METADATA_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: no JSON ({error}); correct or remove it") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: holds no names and values; correct or remove it")
    if table.get("format", "img") != "img":
        raise ConfigError(
            f"{path}: samples in the format {shown(str(table['format']))} are pickled tensors, "
            "which can run anything when they are read; make the shards anew with images "
            "(format img), or `convoy data convert` the folder they were made from"
        )
    length = table.get(f"{split}_length")
    if length is not None and (type(length) is not int or length < 0):
        raise DataError(f"{path}: {split}_length is {shown(str(length))}, not a number of samples")
    names = _strings(path, table, "class_names")
    if len(set(names)) < len(names) or len(names) > MOST_CLASSES:
        raise DataError(
            f"{path}: {len(names)} class_names, {len(set(names))} of them different; at most "
            f"{MOST_CLASSES} are read, and no name twice"
        )
    return Metadata(length, _strings(path, table, f"{split}_transform_pipeline"), names)


def _strings(path: Path, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = [] if table.get(key) is None else table[key]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"{path}: {key} is no list of texts")
    return tuple(value)


class TarShards(ShardedRecords):
    """One split, in the order (shard name, position). Made by `open_tar_shards`."""

    def __init__(self, folder: Path, index: Index, metadata: Metadata) -> None:
        super().__init__(folder, index, metadata.class_names, METADATA)
        self.steps_done = metadata.steps_done
        self._names: dict[str, PackedNames] = {}  # by shard, when they are first needed

    def _image(self, number: int) -> bytes:
        raw = self._raw(number)
        if google_crc32c.value(raw) != self._index.crc[number]:
            raise BadContentError("the image is not the one that was indexed: other checksum")
        return raw

    def words(self, number: int) -> tuple[str, str]:
        shard = self._shard(number).name
        if shard not in self._names:  # two threads at once find the same
            self._names[shard] = read_names(self._folder / shard)
        return os.fsdecode(self._names[shard][self._index.number_in_file(number)]), ""


def read_names(path: Path) -> PackedNames:
    """File names of all samples in their order; only headers and small members are read."""
    names = PackedNames()
    with path.open("rb", buffering=2**12) as stream:
        try:
            for sample in samples(members(stream, stream.seek(0, os.SEEK_END))):
                names.append(_name_in_json(stream, sample) or _name_of(sample))
        except DamageError:
            names.append(b"")  # the rest of a damaged shard is one bad record
    return names


def _name_in_json(stream: BinaryIO, sample: TarSample) -> bytes:
    member = sample.parts.get(b"json")
    if member is None or member.size > _MOST_JSON_BYTES:
        return b""
    try:
        return os.fsencode(json.loads(take(stream, member.offset, member.size))[FILE_NAME])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return b""


def _name_of(sample: TarSample) -> bytes:
    """Its key without folders, with the suffix of the image."""
    suffix = next((suffix for suffix in sample.parts if suffix in IMAGES), b"")
    return sample.key.rpartition(b"/")[2] + b"." + suffix


def open_tar_shards(folder: Path, split: Split, notice: Notice, progress: Progress) -> TarShards:
    """One split of a folder with tar shards, indexed if it is not yet."""
    metadata = read_metadata(folder, split)
    shards = find_shards(folder, split, "webdataset")
    index = open_index(shards, scan_shard, notice, progress)
    check_tar_set(folder, split, metadata, index)
    return TarShards(folder, index, metadata)


def check_tar_set(folder: Path, split: Split, metadata: Metadata, index: Index) -> None:
    """DataError if a shard lacks samples, or repeats those of another."""
    # Visible damage is left to the policy for bad records, which counts it.
    if metadata.length not in (None, len(index)) and not index.faults:
        raise DataError(
            f"{folder}: {len(index)} samples in the {split} shards, but {METADATA} says "
            f"{split}_length {metadata.length}; a shard lacks some, or is missing: get them anew, "
            f"or correct {METADATA}"
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
                f"{folder}: {seen[images]} and {file.name} hold the same {file.records} images; "
                "get one of them anew"
            )
        seen[images] = file.name


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:06}.tar"


def write_shard(path: Path, samples: Iterable[Sample], first: int) -> int:
    """Write samples under running numbers from `first` on, and count them."""
    count = 0
    with (
        atomic_path(path) as temporary,
        tarfile.open(temporary, mode="x", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for count, sample in enumerate(samples, start=1):
            for suffix, data in sorted(_parts(sample)):
                member = tarfile.TarInfo(f"{first + count - 1:09}.{suffix}")  # dated 0, by root
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return count


def _parts(sample: Sample) -> Iterator[tuple[str, bytes]]:
    boxes = sample.boxes.tolist()  # doubles, which hold single precision exactly
    yield _suffix(sample.encoded), sample.encoded
    yield "cls", str(sample.label).encode()
    table = {"bbox": boxes[0] if len(boxes) == 1 else boxes or None, FILE_NAME: sample.filename}
    yield "json", json.dumps(table).encode()


def _suffix(encoded: bytes) -> str:
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return "webp"
    return next((name for mark, name in _SUFFIXES.items() if encoded.startswith(mark)), "jpg")
