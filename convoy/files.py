"""Files that are complete or absent: atomic writes, synced folders, free space, storage errors.

Every package writes through these functions, so all storage errors are worded alike.
"""

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from convoy.errors import ConfigError, StorageError

FINE_TUNE_FOLDER = "fine-tune"  # run folder of the second phase, inside that of the first

_FOLDER_SYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_OWNER_FILE, _OWNER_FOLDER = 0o600, 0o700
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space or request a larger quota",
    errno.EROFS: "remount the file system read-write",
    errno.EACCES: "change the permissions",
    errno.EPERM: "change the permissions",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "close files in other programs",
    errno.EFBIG: "allow larger files (ulimit -f)",
}


@contextmanager
def atomic_path(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path beside `path` and rename it to `path` on exit.

    File and name are synced to disk. After an error nothing is left behind. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}{suffix}")
    try:
        yield temporary
        ensure_owner_access(temporary, _OWNER_FILE)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Replace a file so that it has either its old or its complete new content.

    Raises StorageError if it cannot be written.
    """
    with (
        storage_errors("write", path),
        atomic_path(path) as temporary,
        temporary.open("xb") as file,
    ):
        file.writelines(chunks)


def check_output(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder; specify a file")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} already exists; choose another --output, or add --overwrite")


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems cannot fsync a folder; they commit entries themselves.
        if error.errno not in _FOLDER_SYNC_UNSUPPORTED:
            raise
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, each synced to disk before it is used."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    ensure_owner_access(path, _OWNER_FOLDER)
    sync_folder(path.parent)


def ensure_owner_access(path: Path, bits: int) -> None:
    """Give the owner these permissions; a strict umask must not make its own files unreadable."""
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def free_bytes(path: Path) -> int | None:
    """Return the free space for this user at an existing or future path; None if unknown."""
    while not path.exists() and path != path.parent:
        path = path.parent
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize if space.f_blocks else None


def require_space(path: Path, needed_bytes: int) -> None:
    """Raise OSError (ENOSPC) before the first byte is written if the space is too small."""
    free = free_bytes(path)
    if free is not None and free < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextmanager
def storage_errors(
    action: str, path: Path, *, needed_bytes: int = 0, remedy: str = "choose another --output"
) -> Iterator[None]:
    """Turn an OSError in this block, or an invalid path, into a StorageError.

    The message has the action, path and reason, the bytes needed and free if relevant, a remedy.
    """
    if "\0" in str(path):
        raise StorageError(f"cannot {action} {path}: embedded null byte; {remedy}")
    try:
        yield
    except OSError as error:
        number, reason = error.errno, str(error)
        if number is not None:
            reason = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
        if needed_bytes:
            reason += f", {needed_bytes:,} bytes needed"
        if needed_bytes or number in _DISK_FULL:
            free = None
            with suppress(OSError):
                free = free_bytes(path)
            reason += f", {'an unknown number of' if free is None else f'{free:,}'} bytes free"
        if number in _REMEDIES:
            remedy = f"{_REMEDIES[number]} or {remedy}"
        raise StorageError(f"cannot {action} {path}: {reason}; {remedy}") from error
