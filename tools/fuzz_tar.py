"""The target for tar shards of `tools/fuzz.py`: valid shards, and checks of what is read."""

import io
import json
import tarfile
from random import Random

import numpy as np

from convoy.data.records.record import MAX_RECORD_BYTES
from convoy.data.records.tar_reader import BLOCK_BYTES, scan_stream

_CHECKSUM = slice(148, 156)


def seeds() -> list[bytes]:
    """Two samples in each tar format; the names are too long for the format of 1988."""
    return [
        _shard(tarfile.USTAR_FORMAT, "folder/"),
        _shard(tarfile.GNU_FORMAT, "n" * 120),
        _shard(tarfile.PAX_FORMAT, "n" * 120),
    ]


def _shard(tar_format: int, prefix: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for label in (0, 7):
            boxes = json.dumps({"bbox": [0, 0.25, 0.5, 1]}).encode()
            for suffix, content in (("cls", b"%d" % label), ("jpg", b"image"), ("json", boxes)):
                member = tarfile.TarInfo(f"{prefix}{label}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    content = buffer.getvalue().rstrip(b"\0")
    return content + bytes(-len(content) % BLOCK_BYTES + 2 * BLOCK_BYTES)  # end marker


def read(data: bytes) -> None:
    """Every record is inside the shard, and the values of valid records are in range."""
    scan = scan_stream(io.BytesIO(data), len(data))
    offset, size = np.asarray(scan.offset), np.asarray(scan.size)
    valid = np.asarray(scan.label) >= 0

    assert ((offset >= 0) & (size >= 0)).all()
    assert (offset + size <= len(data)).all()
    assert ((size[valid] > 0) & (size[valid] <= MAX_RECORD_BYTES)).all()
    assert len(scan.faults) == len(valid) - valid.sum()
    assert len(scan.crc) == len(scan.label) == len(scan.box_count)
    assert sum(scan.box_count) == len(scan.boxes)
    assert ((scan.boxes >= 0) & (scan.boxes <= 1)).all()


def repair(data: bytes, rng: Random) -> bytes:
    """Correct the checksums of all headers, so that their other fields are read."""
    if rng.random() < 0.5:
        return data
    fixed = bytearray(data)
    for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
        header = fixed[start : start + BLOCK_BYTES]
        if header[257:262] == b"ustar":
            header[_CHECKSUM] = b" " * 8
            header[_CHECKSUM] = b"%06o\0 " % sum(header)
            fixed[start : start + BLOCK_BYTES] = header
    return bytes(fixed)
