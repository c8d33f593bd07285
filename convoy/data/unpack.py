"""A `.tar.gz` from elsewhere, unpacked without trust: plain files inside one folder, or DataError.

Every decompressed byte is counted, headers too, so no small archive can fill memory or disk.
"""

import gzip
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from convoy.errors import DataError

_MOST_MEMBERS = 64  # the official archives have eight
_MOST_NAME_BYTES = 255  # what common file systems take
_CHUNK = 2**18
# What tarfile and gzip raise on bytes that are no archive; the last four come from odd headers.
_DAMAGE = (
    *(tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError),
    *(ValueError, OverflowError, RecursionError, MemoryError),
)


class _Refused(Exception):
    """The reason why an archive is not unpacked."""


class _Counted(gzip.GzipFile):
    """A decompressed stream that may give only so many bytes."""

    def __init__(self, archive: Path, most_bytes: int) -> None:
        super().__init__(archive, "rb")
        self.most_bytes = most_bytes
        self.given = 0

    def read(self, size: int | None = -1) -> bytes:
        raw = super().read(size)
        self.given += len(raw)
        if self.given > self.most_bytes:
            raise _Refused(f"it unpacks to more than the {self.most_bytes} bytes allowed")
        return raw


def unpack(archive: Path, into: Path, most_bytes: int) -> None:
    """Write the files of the archive below `into`, a new folder that the caller drops on errors."""
    into.mkdir()
    try:
        # As a stream: tarfile cannot seek in it, so no header can send it round in a circle.
        with (
            _Counted(archive, most_bytes) as stream,
            tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as tar,
        ):
            for number, member in enumerate(tar):
                if number == _MOST_MEMBERS:
                    raise _Refused(f"it has more than {_MOST_MEMBERS} members")
                _write(tar, member, into, most_bytes)
    except _Refused as refused:
        raise DataError(f"{archive}: {refused}; refused") from refused
    except _DAMAGE as error:
        raise DataError(f"{archive}: damaged, or no .tar.gz: {error}") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path, most_bytes: int) -> None:
    target = into / _inside(member.name)
    if member.type == tarfile.DIRTYPE:
        return  # folders come with their files
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise _Refused(f"its member {member.name!r} is a link or another special file")
    if not 0 <= member.size <= most_bytes:
        raise _Refused(
            f"its member {member.name!r} has {member.size} bytes, {most_bytes} are allowed in all"
        )
    content = tar.extractfile(member)
    assert content is not None, "a regular file has content"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, target.open("xb") as file:
            shutil.copyfileobj(content, file, _CHUNK)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise _Refused(f"its member {member.name!r} stands where another one is") from error


def _inside(name: str) -> PurePosixPath:
    """The path of a member, if it leads nowhere but down."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise _Refused(f"its member {name!r} leads out of the folder")
    if len(os.fsencode(name)) > _MOST_NAME_BYTES:
        raise _Refused(f"its member {name[:40]!r}… has a name of {len(name)} characters")
    return path
