"""Run requests and run folders: files, creation and locking."""

import errno
import fcntl
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from convoy.config.resolve import ResolvedConfig
from convoy.config.schema import RunConfig
from convoy.errors import BusyError, ConfigError
from convoy.events import Observer
from convoy.files import atomic_path, storage_errors

if TYPE_CHECKING:
    from convoy.run.user_code import UserObjects

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_NAME_LENGTH = 100
_NO_LOCK_ERRNOS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}  # network file systems without locks


@dataclass(frozen=True)
class RunRequest:
    """A new run, or the run in `folder` resumed."""

    resolved: ResolvedConfig
    folder: Path | None = None
    checkpoint: Path | None = None  # resume from this instead of the newest valid checkpoint
    override: bool = False  # resume although options or data have changed
    quiet: bool = False  # print no closing lines
    observers: tuple[Observer, ...] = ()  # besides the log and the display
    user_objects: "UserObjects | None" = None  # the user's own network and dataset, from Python
    keeps_process: bool = False  # a second Ctrl-C raises KeyboardInterrupt; the process continues


class RunFolder:
    """The files of one run. Creating this object accesses no file; `lock` does.

    As a context manager it releases the lock; the kernel does so when the process dies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.plan = path / "plan.json"
        self.metrics = path / "metrics.jsonl"
        self.validation = path / "validation.jsonl"
        self.events = path / "events.jsonl"
        self.log = path / "log.txt"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        logs = (self.metrics, self.validation, self.events, self.log)
        self.files = (self.config, self.plan, *logs, self.summary)
        self._descriptor: int | None = None  # of the lock

    @property
    def has_run(self) -> bool:
        """Whether the folder contains files of a run."""
        with storage_errors("read", self.path):
            if any(file.exists() for file in self.files):
                return True
            return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    def _check_writable(self) -> None:
        """Create the folder and write a test file, so that errors occur at the start."""
        test_file = self.path / f".write-test-{os.getpid()}"
        with storage_errors("write to", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with atomic_path(test_file) as temporary:
                temporary.write_bytes(b"convoy\n")
            test_file.unlink()

    @property
    def locked(self) -> bool:
        """Whether this process has the lock; False on file systems without locks."""
        return self._descriptor is not None

    def lock(self) -> None:
        """Create the folder and acquire its lock; raise BusyError, naming the owner, if taken."""
        self._check_writable()
        with storage_errors("lock", self.path):
            # 0o666 less the umask, as for every other file
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_owner(descriptor)
            except OSError as error:
                owner = _read_owner(descriptor) if error.errno == errno.EWOULDBLOCK else ""
                os.close(descriptor)
                if owner:
                    raise BusyError(
                        f"{self.path} is in use by {owner}; wait for it or choose another --output"
                    ) from None
                if error.errno not in _NO_LOCK_ERRNOS:
                    raise
                return
        self._descriptor = descriptor
        # A forked child shares the lock and would keep it after this process ends.
        os.register_at_fork(after_in_child=self._close)

    def release(self) -> None:
        """Release the lock; the file stays, since removing it could release another lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        """Close the file without unlocking: in a forked child the lock is the parent's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _write_owner(descriptor: int) -> None:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode() + b"\n", 0)


def _read_owner(descriptor: int) -> str:
    """Describe the owner of the lock; it may not have written its name yet."""
    for _ in range(10):
        try:
            owner = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
        except (ValueError, KeyError, TypeError):
            time.sleep(0.02)
    return "another process (PID unknown)"


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
        raise ConfigError(
            f"run name {name[: _MAX_NAME_LENGTH + 1]!r} ({len(name)} characters) is not valid; "
            f"use at most {_MAX_NAME_LENGTH} letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )
    return name


def _next_numbered_folder(parent: Path, stem: str) -> Path:
    """Create `<stem>-<n>` with the next free n; mkdir decides between two processes."""
    pattern = re.compile(re.escape(stem) + r"-([0-9]{1,9})")
    with storage_errors("create a run folder in", parent):
        parent.mkdir(parents=True, exist_ok=True)
        taken = (pattern.fullmatch(entry.name) for entry in parent.iterdir())
        number = 1 + max((int(match[1]) for match in taken if match), default=0)
        while True:
            try:
                (parent / f"{stem}-{number}").mkdir()
            except FileExistsError:
                number += 1
            else:
                return parent / f"{stem}-{number}"


def claim_run_folder(path: Path) -> RunFolder:
    """Create and lock the folder of a new run; it must not contain a run."""
    folder = RunFolder(path)
    folder.lock()
    if folder.has_run:
        folder.release()
        raise ConfigError(
            f"{path} already contains a run; resume it with `convoy resume {quote(str(path))}`, "
            "or choose another --output"
        )
    return folder


def reclaim_run_folder(path: Path) -> RunFolder:
    """Lock and clear the folder of a run that starts, or restarts without a checkpoint."""
    folder = RunFolder(path)
    folder.lock()
    with storage_errors("clear", path):
        for file in folder.files:
            file.unlink(missing_ok=True)
    return folder


def _stem(name: str) -> str:
    """The name of a model or dataset in that of a folder; `module:function` becomes `function`."""
    return re.sub("[^A-Za-z0-9._-]", "-", name.rpartition(":")[2])


def claim_new_folder(config: RunConfig) -> RunFolder:
    stem = f"{_stem(config.network.model)}-{_stem(config.data.data)}"
    return new_run_folder(config, stem, config.report.name_suffix)


def new_run_folder(config: RunConfig, stem: str, suffix: str | None = None) -> RunFolder:
    """Create the folder: `--output`, `--name`, or the stem with the next free number."""
    output, parent = config.checkpoint.checkpoint_output_path, Path(config.report.log_dir)
    if output is not None:
        return claim_run_folder(Path(output))
    ending = "" if suffix is None else f"-{suffix}"
    if config.report.name is not None:
        return claim_run_folder(parent / _check_name(config.report.name + ending))
    return claim_run_folder(_next_numbered_folder(parent, _check_name(stem + ending)))


def open_run_folder(path: Path) -> RunFolder:
    """Open and lock the folder of a run to resume; raise ConfigError without a run."""
    folder = RunFolder(path)
    if not folder.has_run:
        raise ConfigError(
            f"{path} does not contain a run; start one with `convoy train --output …`"
        )
    folder.lock()
    return folder
