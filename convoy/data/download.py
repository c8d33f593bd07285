"""Download the official CIFAR archives with resume, verify their checksums, unpack them."""

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
RETRY_PAUSES = (0.5, 1.0, 2.0)  # in seconds, before each retry

_CHUNK = 2**18
_TEMPORARY_STATUS = {408, 416, 425, 429, 500, 502, 503, 504}  # worth a retry


@dataclass(frozen=True)
class Archive:
    """A published archive, and the folder it is unpacked to."""

    url: str
    bytes: int
    md5: str
    folder: str
    files: Mapping[str, tuple[int, str | None]]  # size, and MD5 if it is published

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    @property
    def unpacked_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


_BATCH_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
ARCHIVES = Registry(
    "dataset to fetch",
    {
        "cifar10": Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            bytes=170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder=CIFAR10.folder,
            files={name: (30_730_000, md5) for name, md5 in _BATCH_MD5.items()},
        ),
        "cifar100": Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            bytes=168_513_733,
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder=CIFAR100.folder,
            files={"train.bin": (153_700_000, None), "test.bin": (30_740_000, None)},
        ),
    },
)


def fetch(archive: Archive, folder: Path, on_progress: Progress) -> Path:
    """Download a dataset into `folder` and return the folder with its files."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--data-dir {folder}: a file, not a folder")
    needed = archive.bytes + archive.unpacked_bytes
    with storage_errors(
        "download to", folder, needed_bytes=needed, remedy="choose another --data-dir"
    ):
        for target in (folder / archive.folder, folder):
            if not missing_or_changed_files(archive, target):
                return target
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            return _unpack_into_place(
                archive, _get_archive_file(archive, folder, on_progress), folder
            )


def missing_or_changed_files(archive: Archive, target: Path) -> list[str]:
    """Describe how a folder differs from the unpacked archive; empty if it is complete."""
    problems = []
    for name, (expected, expected_md5) in archive.files.items():
        path = target / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            problems.append(f"{name} is missing")
        elif size != expected:
            problems.append(f"{name} has {size} bytes, not {expected}")
        elif expected_md5 and (md5 := _md5(path)) != expected_md5:
            problems.append(f"{name} has the MD5 {md5}, not {expected_md5}")
    return problems


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _get_archive_file(archive: Archive, folder: Path, on_progress: Progress) -> Path:
    """Return an archive with the correct checksum: placed there manually, or downloaded."""
    manual, part = folder / archive.name, folder / f"{archive.name}.part"
    for path in (manual, part):
        if path.exists() and not path.is_file():  # a pipe would block forever
            raise StorageError(f"{path}: not a regular file; remove it")
    if manual.exists():
        _check_md5(archive, manual, f"remove {manual} to download it")
        return manual
    resumed = part.exists()
    require_space(folder, archive.bytes - _bytes_on_disk(part) + archive.unpacked_bytes)
    download(archive.url, part, archive.bytes, on_progress)
    if resumed and _md5(part) != archive.md5:
        part.unlink()  # the partial file may belong to another archive: download all of it
        download(archive.url, part, archive.bytes, on_progress)
    try:
        _check_md5(archive, part, f"try again later, or {_manual_download_hint(part)}")
    except DataError:
        part.unlink()
        raise
    return part


def _check_md5(archive: Archive, path: Path, way_out: str) -> None:
    md5 = _md5(path)
    if md5 != archive.md5:
        raise DataError(
            f"{path}: {path.stat().st_size} bytes with MD5 {md5}, but the published archive has "
            f"{archive.bytes} with {archive.md5} ({archive.url}); {way_out}"
        )


class _RetryError(Exception):
    """This attempt failed, but a retry may succeed."""


def download(url: str, part: Path, total: int, on_progress: Progress) -> None:
    """Download to `part` until it has `total` bytes, resuming if it exists."""
    for pause in (*RETRY_PAUSES, None):
        try:
            return _try_download(url, part, total, on_progress)
        except _RetryError as error:
            if pause is None:
                raise DataError(
                    f"{url}: {error} ({len(RETRY_PAUSES) + 1} attempts, {_bytes_on_disk(part)} of "
                    f"{total} bytes downloaded). Run the same command again to resume, or "
                    f"{_manual_download_hint(part)}"
                ) from error
            time.sleep(pause)


def _manual_download_hint(part: Path) -> str:
    """What to do without a network, or if the server has a different file."""
    target = part.with_suffix("")
    return f"download the file by other means, put it at {target} and run the command again"


def _bytes_on_disk(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _try_download(url: str, part: Path, total: int, on_progress: Progress) -> None:
    received = _bytes_on_disk(part)
    if received > total:  # belongs to a different file
        part.unlink()
        received = 0
    on_progress(received, total)
    if received == total:
        return
    with _request(url, part, received) as response:
        if response.status != 206:  # the server ignores the range and sends everything
            received = 0
            offered = response.headers.get("Content-Length", str(total))
            if offered != str(total):
                raise DataError(
                    f"{url}: the server offers {offered} bytes, not the published {total}; "
                    f"{_manual_download_hint(part)}"
                )
        elif response.headers["Content-Range"] != f"bytes {received}-{total - 1}/{total}":
            part.unlink()
            raise _RetryError(f"the server did not send the bytes starting at {received}")
        with part.open("ab" if received else "wb") as file:
            while received < total:
                try:
                    data = response.read1(min(_CHUNK, total - received))
                except (OSError, HTTPException) as error:
                    raise _RetryError(f"the connection was lost: {error}") from error
                if not data:
                    raise _RetryError(f"the connection ended {total - received} bytes early")
                file.write(data)
                received += len(data)
                on_progress(received, total)


def _request(url: str, part: Path, start: int) -> HTTPResponse:
    headers = {"User-Agent": "convoy", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        # A new opener reads the current proxy variables; urlopen caches those of its first use.
        response: HTTPResponse = build_opener().open(
            Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
        return response
    except HTTPError as error:
        error.close()
        reason = f"the server returned {error.code} {error.reason}"
        if error.code == 416:  # the partial file is longer than the server's: of another file
            part.unlink(missing_ok=True)
        if error.code in _TEMPORARY_STATUS:
            raise _RetryError(reason) from error
        raise DataError(f"{url}: {reason}; {_manual_download_hint(part)}") from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        cause = error.reason if isinstance(error, URLError) else error
        raise _RetryError(f"no connection: {cause}") from error


def unpack(archive_file: Path, target: Path) -> None:
    """Unpack an archive with a verified checksum; no member can be written outside the target."""
    try:
        with tarfile.open(archive_file, "r:gz") as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive_file}: damaged, or not a .tar.gz: {error}") from error


def _unpack_into_place(archive: Archive, archive_file: Path, folder: Path) -> Path:
    """Unpack into a temporary folder, verify the files, and move them into place."""
    target, temporary = folder / archive.folder, folder / f".{archive.folder}.unpacking"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed run
    try:
        unpack(archive_file, temporary)
        unpacked = temporary / archive.folder
        problems = missing_or_changed_files(archive, unpacked)
        if problems:
            raise DataError(
                f"{archive_file}: unexpected contents of {archive.folder}: {'; '.join(problems)}"
            )
        target.mkdir(exist_ok=True)  # other files of an incomplete folder are kept
        for path in sorted(unpacked.iterdir()):
            path.replace(target / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if archive_file.suffix == ".part":
        archive_file.unlink()
    return target


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no other fetch writes the same files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"{folder}: another download is using this folder; wait until it finishes"
            ) from error
        except OSError:
            pass  # a file system without locks; checksums still detect concurrent writes
        yield
    finally:
        os.close(handle)
