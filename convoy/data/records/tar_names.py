"""What the images of a tar shard were called: as their .json tells, else as the tar has them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from convoy.data.records.names import Names
from convoy.data.records.tar_members import DamageError, Member, members
from convoy.data.records.tar_scan import IMAGES, Group, content, groups

FILE_NAME = "filename"  # in the .json; the reference has no name for it

_MOST_BYTES = 2**20  # of a .json


def read_names(path: Path) -> Names:
    """Of all samples in their order; only headers and small members are read."""
    with path.open("rb", buffering=2**12) as stream:
        return Names(_names(stream, stream.seek(0, os.SEEK_END)))


def _names(stream: BinaryIO, total: int) -> Iterator[str]:
    try:
        for group in groups(members(stream, total)):
            yield _told(stream, group.parts.get(b"json")) or _own(group)
    except DamageError:
        yield ""  # the rest of a damaged shard is one bad record


def _told(stream: BinaryIO, member: Member | None) -> str:
    if member is None or member.size > _MOST_BYTES:
        return ""
    try:
        name = json.loads(content(stream, member))[FILE_NAME]
        os.fsencode(name)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return ""
    return str(name)


def _own(group: Group) -> str:
    """With the suffix of the image, without folders."""
    suffix = next((suffix for suffix in group.parts if suffix in IMAGES), b"")
    return os.fsdecode(group.key.rpartition(b"/")[2] + b"." + suffix)
