"""Tar shards, written: the same samples give the same bytes, and a shard is whole or not there."""

import io
import json
import os
import secrets
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from convoy.data.records.sample import Sample
from convoy.data.records.tar_names import FILE_NAME

# By how an image begins; others are called .jpg, and the decoder has the last word.
_SUFFIXES = {
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:06}.tar"


def write_shard(path: Path, samples: Iterable[Sample], first: int) -> int:
    """Write samples under running numbers from `first` on; returns how many they were."""
    draft = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    count = 0
    try:
        with draft.open("xb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for count, sample in enumerate(samples, start=1):
                    _add(tar, f"{first + count - 1:09}", sample)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return count


def _add(tar: tarfile.TarFile, key: str, sample: Sample) -> None:
    for suffix, content in sorted(_parts(sample)):
        member = tarfile.TarInfo(f"{key}.{suffix}")  # its date is 0, its owner root
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def _parts(sample: Sample) -> Iterator[tuple[str, bytes]]:
    boxes = sample.boxes.tolist()  # doubles, which say exactly what single precision holds
    yield _suffix(sample.encoded), sample.encoded
    yield "cls", str(sample.label).encode()
    told = {"bbox": boxes[0] if len(boxes) == 1 else boxes or None, FILE_NAME: sample.filename}
    yield "json", json.dumps(told).encode()


def _suffix(encoded: bytes) -> str:
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return "webp"
    return next((name for mark, name in _SUFFIXES.items() if encoded.startswith(mark)), "jpg")
