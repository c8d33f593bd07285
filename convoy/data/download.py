"""The official CIFAR archives: downloaded with resume, checked by their sums, unpacked."""

import fcntl
import hashlib
import os
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener

from convoy.data.progress import Progress
from convoy.data.sources.cifar import CIFAR10, CIFAR100
from convoy.errors import BusyError, ConfigError, DataError, StorageError
from convoy.files import require_space, storage_errors
from convoy.registry import Registry

TIMEOUT_SECONDS = 30.0
RETRY_PAUSES = (0.5, 1.0, 2.0)  # seconds before each further try

_CHUNK = 2**18
_TEMPORARY_STATUS = {408, 416, 425, 429, 500, 502, 503, 504}  # that another try may change


@dataclass(frozen=True)
class ListedFile:
    """A file as it must be."""

    bytes: int
    md5: str | None = None  # None: not published, only the size is checked


@dataclass(frozen=True)
class Archive:
    """A published archive, and the folder it becomes."""

    url: str
    bytes: int
    md5: str
    folder: str
    files: Mapping[str, ListedFile]

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    @property
    def unpacked_bytes(self) -> int:
        return sum(listed.bytes for listed in self.files.values())


_BATCH_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
ARCHIVES = Registry(
    "data set to fetch",
    {
        "cifar10": Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            bytes=170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder=CIFAR10.folder,
            files={name: ListedFile(30_730_000, md5) for name, md5 in _BATCH_MD5.items()},
        ),
        "cifar100": Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            bytes=168_513_733,
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder=CIFAR100.folder,
            files={"train.bin": ListedFile(153_700_000), "test.bin": ListedFile(30_740_000)},
        ),
    },
)


def fetch(
    name: str, folder: Path, *, on_progress: Progress, archive: Archive | None = None
) -> Path:
    """Bring a data set below `folder` and return the folder with its files."""
    archive = archive or ARCHIVES[name]
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--data-dir {folder}: this is a file, not a folder")
    needed = archive.bytes + archive.unpacked_bytes
    with storage_errors("fetch into", folder, needed=needed, way_out="choose another --data-dir"):
        for home in (folder / archive.folder, folder):
            if not differences(archive, home):
                return home
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            return _install(archive, _packed(archive, folder, on_progress), folder)


def differences(archive: Archive, home: Path) -> list[str]:
    """How a folder differs from the unpacked archive; nothing if it is complete."""
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


def _packed(archive: Archive, folder: Path, on_progress: Progress) -> Path:
    """The archive with the right sum: one put there by hand, or ours after the download."""
    by_hand, part = folder / archive.name, folder / f"{archive.name}.part"
    for path in (by_hand, part):
        if path.exists() and not path.is_file():  # a pipe would block for ever
            raise StorageError(f"{path}: not a regular file; remove it")
    if by_hand.exists():
        _check_sum(archive, by_hand, f"remove {by_hand} to download it")
        return by_hand
    resumed = part.exists()
    require_space(folder, archive.bytes - _size(part) + archive.unpacked_bytes)
    download(archive.url, part, archive.bytes, on_progress)
    if resumed and _md5(part) != archive.md5:
        part.unlink()  # an earlier run may have left a part of another file: once more, all of it
        download(archive.url, part, archive.bytes, on_progress)
    try:
        _check_sum(archive, part, f"try again later, or {_by_hand(part)}")
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


class _RetryError(Exception):
    """This try failed; the next one may not."""


def download(url: str, part: Path, total: int, on_progress: Progress) -> None:
    """Bring `part` to `total` bytes, keeping those it has."""
    for pause in (*RETRY_PAUSES, None):
        try:
            return _try_download(url, part, total, on_progress)
        except _RetryError as error:
            if pause is None:
                raise DataError(
                    f"{url}: {error} ({len(RETRY_PAUSES) + 1} tries, {_size(part)} of {total} "
                    f"bytes here). Run the same command again to resume, or {_by_hand(part)}"
                ) from error
            time.sleep(pause)


def _by_hand(part: Path) -> str:
    """What to do without a network, or if the server has another file."""
    return f"get the file by other means, put it at {part.with_suffix('')} and run it again"


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _try_download(url: str, part: Path, total: int, on_progress: Progress) -> None:
    here = _size(part)
    if here > total:  # of another file
        part.unlink()
        here = 0
    on_progress(here, total)
    if here == total:
        return
    with _request(url, part, here) as response:
        if response.status != 206:  # the server sends all of it
            here = 0
            offered = response.headers.get("Content-Length", str(total))
            if offered != str(total):
                raise DataError(
                    f"{url}: the server has {offered} bytes there, not the published {total}; "
                    f"{_by_hand(part)}"
                )
        elif response.headers["Content-Range"] != f"bytes {here}-{total - 1}/{total}":
            part.unlink()
            raise _RetryError(f"the server sent other bytes than those from {here} on")
        with part.open("ab" if here else "wb") as file:
            while here < total:
                try:
                    data = response.read1(min(_CHUNK, total - here))
                except (OSError, HTTPException) as error:
                    raise _RetryError(f"the connection broke: {error}") from error
                if not data:
                    raise _RetryError(f"the connection ended {total - here} bytes early")
                file.write(data)
                here += len(data)
                on_progress(here, total)


def _request(url: str, part: Path, here: int) -> HTTPResponse:
    headers = {"User-Agent": "convoy", **({"Range": f"bytes={here}-"} if here else {})}
    try:
        # A fresh opener reads the current proxy variables; urlopen keeps those of its first use.
        response: HTTPResponse = build_opener().open(
            Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
        return response
    except HTTPError as error:
        error.close()
        reason = f"the server answers {error.code} {error.reason}"
        if error.code == 416:  # the server's file ends before ours: ours is of another one
            part.unlink(missing_ok=True)
        if error.code in _TEMPORARY_STATUS:
            raise _RetryError(reason) from error
        raise DataError(f"{url}: {reason}; {_by_hand(part)}") from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        cause = error.reason if isinstance(error, URLError) else error
        raise _RetryError(f"no connection: {cause}") from error


def unpack(packed: Path, into: Path) -> None:
    """Write the files of an archive whose sum is the published one; no member can lead out."""
    try:
        with tarfile.open(packed, "r:gz") as tar:
            tar.extractall(into, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{packed}: damaged, or no .tar.gz: {error}") from error


def _install(archive: Archive, packed: Path, folder: Path) -> Path:
    """Unpack into a temporary folder, check, and move what is right into place."""
    home, temporary = folder / archive.folder, folder / f".{archive.folder}.unpacking"
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed here
    try:
        unpack(packed, temporary)
        unpacked = temporary / archive.folder
        wrong = differences(archive, unpacked)
        if wrong:
            raise DataError(f"{packed}: unpacked, but in {archive.folder} {'; '.join(wrong)}")
        home.mkdir(exist_ok=True)  # one that is incomplete keeps its other files
        for path in sorted(unpacked.iterdir()):
            path.replace(home / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if packed.suffix == ".part":
        packed.unlink()
    return home


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no second fetch writes the same files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"{folder}: another fetch works here; wait for its end") from error
        except OSError:
            pass  # a file system without locks; the sums still show what two writers did
        yield
    finally:
        os.close(handle)
