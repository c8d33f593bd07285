"""Tar shards for `tools/fuzz.py`: right ones of each kind, and what must hold of any."""

import io
import json
import tarfile
from random import Random

import numpy as np

from convoy.data.records.record import MAX_RECORD_BYTES
from convoy.data.records.tar_reader import BLOCK_BYTES, scan_stream

_CHECKSUM = slice(148, 156)


def seeds() -> list[bytes]:
    """Two samples each, in the three forms of tar, with names too long for the first."""
    return [
        _shard(tarfile.USTAR_FORMAT, "folder/"),
        _shard(tarfile.GNU_FORMAT, "n" * 120),
        _shard(tarfile.PAX_FORMAT, "n" * 120),
    ]


def _shard(form: int, begin: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for label in (0, 7):
            boxes = json.dumps({"bbox": [0, 0.25, 0.5, 1]}).encode()
            for suffix, content in (("cls", b"%d" % label), ("jpg", b"image"), ("json", boxes)):
                member = tarfile.TarInfo(f"{begin}{label}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    content = buffer.getvalue().rstrip(b"\0")
    return content + bytes(-len(content) % BLOCK_BYTES + 2 * BLOCK_BYTES)  # end marker


def read(data: bytes) -> None:
    """Every record lies inside the shard, good ones with what an index may hold."""
    found = scan_stream(io.BytesIO(data), len(data))
    offset, size = np.asarray(found.offset), np.asarray(found.size)
    good = np.asarray(found.label) >= 0

    assert ((offset >= 0) & (size >= 0)).all()
    assert (offset + size <= len(data)).all()
    assert ((size[good] > 0) & (size[good] <= MAX_RECORD_BYTES)).all()
    assert len(found.faults) == len(good) - good.sum()
    assert len(found.crc) == len(found.label) == len(found.box_count)
    assert sum(found.box_count) == len(found.boxes)
    assert ((found.boxes >= 0) & (found.boxes <= 1)).all()


def repair(data: bytes, chance: Random) -> bytes:
    """Right checksums of all headers, so that what they say has to be judged."""
    if chance.random() < 0.5:
        return data
    fixed = bytearray(data)
    for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
        header = fixed[start : start + BLOCK_BYTES]
        if header[257:262] == b"ustar":
            header[_CHECKSUM] = b" " * 8
            header[_CHECKSUM] = b"%06o\0 " % sum(header)
            fixed[start : start + BLOCK_BYTES] = header
    return bytes(fixed)
