"""Files that are complete or absent: atomic writes, synced folders, free space, storage errors.

Every package writes through these; a refused system call becomes one StorageError wording.
"""

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from convoy.errors import ConfigError, StorageError

FINE_TUNE = "fine-tune"  # the folder of the second phase, inside the run folder and like it

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_OWNER_FILE, _OWNER_FOLDER = 0o600, 0o700
_REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room or ask for a larger quota",
    errno.EROFS: "mount the file system for writing",
    errno.EACCES: "change the permissions",
    errno.EPERM: "change the permissions",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "close other programs' files",
    errno.EFBIG: "allow larger files (ulimit -f)",
}


@contextmanager
def atomic_path(path: Path, suffix: str = "") -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it at the end; nothing is left after an error.

    The file is on disk before it gets its name, and the name before this returns. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}{suffix}")
    try:
        yield temporary
        allow_owner(temporary, _OWNER_FILE)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """The file has the old content or all of the new; StorageError if it cannot be written."""
    with (
        storage_errors("write", path),
        atomic_path(path) as temporary,
        temporary.open("xb") as file,
    ):
        file.writelines(chunks)


def check_output(path: Path, override: bool) -> None:
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder; name a file")
    if path.exists() and not override:
        raise ConfigError(f"{path} exists already; choose another --output, or add --override")


def sync_folder(path: Path) -> None:
    """Put the names in a folder on disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems do not know fsync of a folder; they commit names by themselves.
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Create the folder and those above it, each one on disk before it is used."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    allow_owner(path, _OWNER_FOLDER)
    sync_folder(path.parent)


def allow_owner(path: Path, bits: int) -> None:
    """The umask decides about others; it must not lock us out of our own files."""
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def free_bytes(path: Path) -> int | None:
    """Free space for this user where the path is, or would be; None if it is unknown."""
    while not path.exists() and path != path.parent:
        path = path.parent
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize if space.f_blocks else None


def require_space(path: Path, needed: int) -> None:
    """Fail before the first byte is written; OSError with ENOSPC."""
    free = free_bytes(path)
    if free is not None and free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def storage_error(
    action: str,
    path: Path,
    error: OSError | ValueError,
    *,
    needed: int = 0,
    way_out: str = "choose another --output",
) -> StorageError:
    """What failed, where and why; the bytes needed and free if they matter; the way out."""
    number = error.errno if isinstance(error, OSError) else None
    reason, remedy = str(error), ""
    if number is not None:
        reason = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
        remedy = f"{_REMEDIES[number]} or " if number in _REMEDIES else ""
    if needed:
        reason += f", {needed:,} bytes needed"
    if needed or number in _DISK_FULL:
        reason += f", {_free_text(path)} free"
    return StorageError(f"cannot {action} {path}: {reason}; {remedy}{way_out}")


def _free_text(path: Path) -> str:
    try:
        free = free_bytes(path)
    except OSError:
        free = None
    return "an unknown number of bytes" if free is None else f"{free:,} bytes"


@contextmanager
def storage_errors(
    action: str, path: Path, *, needed: int = 0, way_out: str = "choose another --output"
) -> Iterator[None]:
    """An OSError in this block becomes a StorageError."""
    try:
        yield
    except OSError as error:
        raise storage_error(action, path, error, needed=needed, way_out=way_out) from error
