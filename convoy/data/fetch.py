"""The official CIFAR archives: downloaded, checked against the published sums, unpacked, in place.

A folder that is complete is left alone; a `.part` file is gone on with; files appear only whole.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from convoy.data.cifar import CIFAR10, CIFAR100
from convoy.data.download import PATIENCE, Patience, Progress, by_hand, download
from convoy.data.unpack import unpack
from convoy.errors import BusyError, ConfigError, DataError, StorageError
from convoy.registry import Registry

_SLACK_BYTES = 2**22  # for what an archive holds beside the listed files: read-me, names, headers
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Listed:
    """A file as it must be."""

    bytes: int
    md5: str | None = None  # None: not published, the size must do


@dataclass(frozen=True)
class Archive:
    """A published archive, and the folder it becomes."""

    url: str
    bytes: int
    md5: str
    folder: str
    files: Mapping[str, Listed]

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    @property
    def unpacked_bytes(self) -> int:
        return sum(listed.bytes for listed in self.files.values())


ARCHIVES = Registry(
    "data set to fetch",
    {
        "cifar10": Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            bytes=170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder=CIFAR10.folder,
            files={
                "data_batch_1.bin": Listed(30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
                "data_batch_2.bin": Listed(30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
                "data_batch_3.bin": Listed(30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
                "data_batch_4.bin": Listed(30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
                "data_batch_5.bin": Listed(30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
                "test_batch.bin": Listed(30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
            },
        ),
        "cifar100": Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            bytes=168_513_733,
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder=CIFAR100.folder,
            files={"train.bin": Listed(153_700_000), "test.bin": Listed(30_740_000)},
        ),
    },
)


def fetch(
    name: str,
    folder: Path,
    *,
    archive: Archive | None = None,
    on_progress: Progress,
    patience: Patience = PATIENCE,
) -> Path:
    """Bring a data set below `folder` and return the folder with its files."""
    archive = archive or ARCHIVES[name]
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--data-dir {folder}: this is a file, not a folder")
    with _storage_errors(folder, archive):
        for home in (folder / archive.folder, folder):
            if not differences(archive, home):
                return home
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder):
            packed = _packed(archive, folder, on_progress, patience)
            return _install(archive, packed, folder)


def differences(archive: Archive, home: Path) -> list[str]:
    """What keeps a folder from being the unpacked archive; nothing when it is complete."""
    found = []
    for name, listed in archive.files.items():
        path = home / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            found.append(f"{name} is missing")
        elif size != listed.bytes:
            found.append(f"{name} has {size} bytes, not {listed.bytes}")
        elif listed.md5 and (md5 := _md5(path)) != listed.md5:
            found.append(f"{name} has the MD5 {md5}, not {listed.md5}")
    return found


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _packed(archive: Archive, folder: Path, on_progress: Progress, patience: Patience) -> Path:
    """The archive with the right sum: one put there by hand, or ours after the download."""
    given, part = folder / archive.name, folder / f"{archive.name}.part"
    for path in (given, part):
        if path.exists() and not path.is_file():  # a pipe would be waited for without end
            raise StorageError(f"{path}: not a regular file; remove it")
    if given.exists():
        _check_sum(archive, given, f"remove {given} to download it")
        return given
    goes_on = part.exists()
    _check_space(archive, folder, part.stat().st_size if goes_on else 0)
    download(archive.url, part, archive.bytes, on_progress, patience)
    if goes_on and _md5(part) != archive.md5:
        # What an earlier run left may be of another file: once more, from the first byte.
        part.unlink()
        download(archive.url, part, archive.bytes, on_progress, patience)
    try:
        _check_sum(archive, part, f"try again later, or {by_hand(part)}")
    except DataError:
        part.unlink()
        raise
    return part


def _check_sum(archive: Archive, path: Path, way_out: str) -> None:
    md5 = _md5(path)
    if md5 != archive.md5:
        raise DataError(
            f"{path}: {path.stat().st_size} bytes with the MD5 {md5}, published are "
            f"{archive.bytes} with {archive.md5} ({archive.url}); {way_out}"
        )


def _check_space(archive: Archive, folder: Path, here: int) -> None:
    needed = max(0, archive.bytes - here) + archive.unpacked_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder}: {archive.name} and its files need {needed} bytes, {free} are free; free "
            f"{needed - free} more or name another folder in --data-dir"
        )


def _install(archive: Archive, packed: Path, folder: Path) -> Path:
    """Unpack beside the place, look, and move what is right into it."""
    home, scratch = folder / archive.folder, folder / f".{archive.folder}.unpacking"
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed here
    try:
        unpack(packed, scratch, archive.unpacked_bytes + _SLACK_BYTES)
        wrong = differences(archive, scratch / archive.folder)
        if wrong:
            raise DataError(f"{packed}: unpacked, but in {archive.folder} {'; '.join(wrong)}")
        _move(scratch / archive.folder, home)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if packed.suffix == ".part":
        packed.unlink()
    return home


def _move(made: Path, home: Path) -> None:
    """Rename the folder, or its files one by one into a folder that is there and incomplete."""
    if not home.exists():
        made.rename(home)
        return
    for path in sorted(made.iterdir()):
        path.replace(home / path.name)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no second fetch writes the same files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"{folder}: another fetch works here; wait for its end") from error
        except OSError:
            pass  # a file system without locks; the sums still tell what two writers did
        yield
    finally:
        os.close(handle)


@contextmanager
def _storage_errors(folder: Path, archive: Archive) -> Iterator[None]:
    """What the file system refuses, with the numbers. The network's errors never get here."""
    try:
        yield
    except OSError as error:
        where, why = error.filename or folder, error.strerror or str(error)
        if error.errno not in _FULL:
            text = f"{where}: {why}; name a folder that can be written in --data-dir"
            raise StorageError(text) from error
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        raise StorageError(
            f"{where}: {why}; {archive.name} and its files need "
            f"{archive.bytes + archive.unpacked_bytes} bytes, {shutil.disk_usage(there).free} are "
            f"free; make room and run it again to go on"
        ) from error
