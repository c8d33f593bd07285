"""A checkpoint folder → its contents, every byte verified before it is parsed.

Files are opened inside the already opened folder, never through links, and must be regular.
Each is read once: the bytes that were hashed are the bytes that are parsed.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from convoy.checkpoint.format import (
    MANIFEST,
    MAX_JSON_BYTES,
    STATE,
    TENSOR_FILES,
    Contents,
    FileEntry,
    Manifest,
    decode_tensors,
    parse_json,
)
from convoy.errors import CheckpointError

_EXPECTED = (
    "a checkpoint is a folder update-<N> with MANIFEST.json, model.safetensors and state.json"
)
_PUBLISHED = re.compile(r"update-(0|[1-9][0-9]{0,14})")
_UNFINISHED = re.compile(r"update-[0-9]+\.(tmp|old)-.*")


def update_of(name: str) -> int | None:
    """N of a folder called `update-<N>`, None for any other name."""
    found = _PUBLISHED.fullmatch(name)
    return int(found[1]) if found else None


def load(path: Path) -> Contents:
    """The contents of a checkpoint; CheckpointError names the file that is wrong."""
    with _open_folder(path) as folder:
        manifest = _read_manifest(folder, path)
        _check_memory(manifest)
        files = {name: _read(folder, name, entry) for name, entry in manifest.files.items()}
        return _parse(files, manifest)


def verify(path: Path, hash_files: bool = True) -> Manifest:
    """Check the manifest and every file without parsing it; CheckpointError names the wrong one.

    Sizes alone are enough for a checkpoint whose files were hashed before.
    """
    with _open_folder(path) as folder:
        manifest = _read_manifest(folder, path)
        for name, entry in manifest.files.items():
            with _naming(name), _open_file(folder, name, entry.bytes) as file:
                if hash_files:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    entry.check(file.tell(), digest)
        return manifest


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """The folder as a descriptor; every problem inside leaves as one CheckpointError."""
    try:
        # O_DIRECTORY refuses files, devices and FIFOs without waiting for them.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise CheckpointError(f"{path} is not a folder; {_EXPECTED}") from error
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no folder {path}; {_EXPECTED}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the folder {path} {_reason(error)}") from error
    try:
        yield folder
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from error
    finally:
        os.close(folder)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the file's name before the text of any error."""
    try:
        yield
    except (OSError, ValueError, MemoryError) as error:
        raise ValueError(f"{name} {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"is missing; {_EXPECTED}"
    if isinstance(error, OSError):
        return f"cannot be read: {errno.errorcode.get(error.errno or 0, 'EIO')}, {error.strerror}"
    return str(error) or type(error).__name__


def _open_file(folder: int, name: str, size: int | None = None) -> BufferedReader:
    """Open a regular file of this folder and size; its type is checked before opening."""
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = open(os.open(name, flags, dir_fd=folder), "rb")  # noqa: PTH123, SIM115 - a descriptor
    try:
        status = os.fstat(file.fileno())
        _check_regular(status)  # again: the name may belong to another file by now
        if size is not None and status.st_size != size:
            raise ValueError(f"has {status.st_size:,} bytes, the manifest says {size:,}")
    except ValueError:
        file.close()
        raise
    return file


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is not a regular file (a link, device or pipe is never followed)")


def _read_manifest(folder: int, path: Path) -> Manifest:
    if _UNFINISHED.fullmatch(path.name):
        raise ValueError("unfinished, its name says that it was being written or replaced")
    with _naming(MANIFEST):
        with _open_file(folder, MANIFEST) as file:
            manifest = Manifest.from_bytes(file.read(MAX_JSON_BYTES + 1))
        update = update_of(path.name)
        if update is not None and update != manifest.update:
            raise ValueError(f"is of update {manifest.update}, the folder's name says {update}")
    return manifest


def _check_memory(manifest: Manifest) -> None:
    """A sparse file of terabytes costs its author nothing; refuse it before reading."""
    needed = 2 * sum(entry.bytes for entry in manifest.files.values())  # the bytes, and the tensors
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ValueError(
            f"{MANIFEST} lists files that need {needed:,} bytes of memory to load, "
            f"this machine has {memory:,}"
        )


def _read(folder: int, name: str, entry: FileEntry) -> bytes:
    with _naming(name), _open_file(folder, name, entry.bytes) as file:
        data = file.read(entry.bytes + 1)  # one more: a file that grew meanwhile is noticed
        entry.check(len(data), hashlib.sha256(data).hexdigest())
        return data


def _parse(files: dict[str, bytes], manifest: Manifest) -> Contents:
    """Each file's bytes are given up as soon as they are parsed."""
    with _naming(STATE):
        state, update = parse_json(files.pop(STATE)), manifest.update
        if not isinstance(state, dict) or state.get("update") != update:
            raise ValueError(f"is not the state of update {update}, which the manifest is of")
    tensors = {}
    for part, name in TENSOR_FILES.items():
        with _naming(name):
            tensors[part] = decode_tensors(files.pop(name)) if name in files else {}
    return Contents(**tensors, state=state)
