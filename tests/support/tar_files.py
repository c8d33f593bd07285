"""Small tar shards for tests, made by Python's own writer."""

import io
import tarfile
from pathlib import Path

IMAGE = b"\xff\xd8 an image"


def tar_bytes(*members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Names and contents as a tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def sample(key: str, label: object, image: bytes = IMAGE) -> list[tuple[str, bytes]]:
    return [(f"{key}.cls", str(label).encode()), (f"{key}.jpg", image)]


def write_tar(path: Path, *members: tuple[str, bytes]) -> Path:
    path.write_bytes(tar_bytes(*members))
    return path


def write_samples(path: Path, *labels: int) -> Path:
    """A shard whose images say where they are from."""
    parts = [
        part
        for number, label in enumerate(labels)
        for part in sample(f"{number:09}", label, f"{path.name} {number}".encode())
    ]
    return write_tar(path, *parts)
