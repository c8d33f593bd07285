"""Read checkpoint folders, verifying every byte before it is parsed.

Files are opened relative to the open folder, never through links, and must be regular files.
Each is read once: the hashed bytes are the parsed bytes.
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
    CheckpointContents,
    FileEntry,
    Manifest,
    decode_tensors,
    parse_json,
)
from convoy.errors import CheckpointError

_LAYOUT_HINT = (
    "a checkpoint is a folder update-<N> with MANIFEST.json, model.safetensors and state.json"
)
_CHECKPOINT_NAME = re.compile(r"update-(0|[1-9][0-9]{0,14})")
_TEMPORARY_NAME = re.compile(r"update-[0-9]+\.(tmp|old)-.*")


def parse_update(name: str) -> int | None:
    """Return N for a folder named `update-<N>`, None for any other name."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def load(path: Path) -> CheckpointContents:
    """Load a checkpoint; CheckpointError names the bad file."""
    with _open_folder(path) as folder:
        manifest = _read_manifest(folder, path)
        _check_memory(manifest)
        files = {name: _read_file(folder, name, entry) for name, entry in manifest.files.items()}
        return _parse_contents(files, manifest)


def verify(path: Path, hash_files: bool = True) -> Manifest:
    """Check the manifest and every file without parsing; CheckpointError names the bad file.

    With `hash_files=False` only sizes are checked, for a checkpoint that was hashed before.
    """
    with _open_folder(path) as folder:
        manifest = _read_manifest(folder, path)
        for name, entry in manifest.files.items():
            with _prefix_errors(name), _open_file(folder, name, entry.bytes) as file:
                if hash_files:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    entry.check(file.tell(), digest)
        return manifest


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """Open a folder as a descriptor; every ValueError inside becomes a CheckpointError."""
    try:
        # O_DIRECTORY refuses files, devices and FIFOs without blocking.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise CheckpointError(f"{path} is not a folder; {_LAYOUT_HINT}") from error
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; {_LAYOUT_HINT}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the folder {path} {_describe_error(error)}") from error
    try:
        yield folder
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from error
    finally:
        os.close(folder)


@contextmanager
def _prefix_errors(name: str) -> Iterator[None]:
    """Prefix errors with the file name."""
    try:
        yield
    except (OSError, ValueError, MemoryError) as error:
        raise ValueError(f"{name} {_describe_error(error)}") from error


def _describe_error(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"is missing; {_LAYOUT_HINT}"
    if isinstance(error, OSError):
        return f"cannot be read: {errno.errorcode.get(error.errno or 0, 'EIO')}, {error.strerror}"
    return str(error) or type(error).__name__


def _open_file(folder: int, name: str, size: int | None = None) -> BufferedReader:
    """Open a regular file in this folder, after checking its type and size."""
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = open(os.open(name, flags, dir_fd=folder), "rb")  # noqa: PTH123, SIM115 - a descriptor
    try:
        status = os.fstat(file.fileno())
        _check_regular(status)  # again: the file may have been replaced
        if size is not None and status.st_size != size:
            raise ValueError(f"has {status.st_size:,} bytes, but the manifest lists {size:,}")
    except ValueError:
        file.close()
        raise
    return file


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is not a regular file (links, devices and pipes are not read)")


def _read_manifest(folder: int, path: Path) -> Manifest:
    if _TEMPORARY_NAME.fullmatch(path.name):
        raise ValueError("incomplete: according to its name it was being written or replaced")
    with _prefix_errors(MANIFEST):
        with _open_file(folder, MANIFEST) as file:
            manifest = Manifest.from_bytes(file.read(MAX_JSON_BYTES + 1))
        update = parse_update(path.name)
        if update is not None and update != manifest.update:
            raise ValueError(f"is of update {manifest.update}, but the folder name says {update}")
    return manifest


def _check_memory(manifest: Manifest) -> None:
    """Refuse files larger than memory before reading, such as huge sparse files."""
    needed = 2 * sum(entry.bytes for entry in manifest.files.values())  # the bytes, and the tensors
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ValueError(
            f"{MANIFEST} lists files that need {needed:,} bytes of memory to load, "
            f"but this machine has {memory:,}"
        )


def _read_file(folder: int, name: str, entry: FileEntry) -> bytes:
    with _prefix_errors(name), _open_file(folder, name, entry.bytes) as file:
        data = file.read(entry.bytes + 1)  # one more, to detect a file that has grown
        entry.check(len(data), hashlib.sha256(data).hexdigest())
        return data


def _parse_contents(files: dict[str, bytes], manifest: Manifest) -> CheckpointContents:
    """Parse the files; the bytes of each are freed as soon as they are parsed."""
    with _prefix_errors(STATE):
        state, update = parse_json(files.pop(STATE)), manifest.update
        if not isinstance(state, dict) or state.get("update") != update:
            text = f"does not contain the state of update {update}, which the manifest lists"
            raise ValueError(text)
    tensors = {}
    for part, name in TENSOR_FILES.items():
        with _prefix_errors(name):
            tensors[part] = decode_tensors(files.pop(name)) if name in files else {}
    return CheckpointContents(**tensors, state=state)
