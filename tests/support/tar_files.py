"""Small tar shards, written by the `tarfile` module."""

import io
import tarfile
from pathlib import Path

IMAGE = b"\xff\xd8 an image"


def tar_bytes(*members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file with these names and contents."""
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
    """A shard whose images contain their file name and index."""
    members = [
        member
        for number, label in enumerate(labels)
        for member in sample(f"{number:09}", label, f"{path.name} {number}".encode())
    ]
    return write_tar(path, *members)
