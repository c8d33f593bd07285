"""What a run is asked to do, and its folder: the files in it, how it is created, its lock."""

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

from convoy.config.resolve import Resolved
from convoy.config.schema import RunConfig
from convoy.errors import BusyError, ConfigError
from convoy.files import storage_error, storage_errors

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_NAME = 100
_LOCKLESS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}  # network file systems without locks


@dataclass(frozen=True)
class RunRequest:
    """A new run, or the run in `folder` resumed."""

    resolved: Resolved
    folder: Path | None = None
    checkpoint: Path | None = None  # resume from this one instead of the newest valid one
    override: bool = False  # resume although options or data have changed
    quiet: bool = False  # print no closing lines


class RunFolder:
    """The files of one run. Naming them touches nothing; `prepare` and `lock` do.

    As a context manager it releases the lock; the kernel does when the process dies.
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
        self._files = (self.config, self.plan, *logs, self.summary)
        self._descriptor: int | None = None  # of the lock

    def forget_run(self) -> None:
        """Remove the files of a run that has no checkpoint."""
        with storage_errors("clear", self.path):
            for file in self._files:
                file.unlink(missing_ok=True)

    @property
    def holds_run(self) -> bool:
        """Whether an earlier run left anything here."""
        with storage_errors("look into", self.path):
            if any(file.exists() for file in self._files):
                return True
            return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    def prepare(self) -> None:
        """Create the folder and write a test file in it, so that errors are found at the start."""
        trial = self.path / f".write-test-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with trial.open("wb") as file:
                file.write(b"convoy\n")
                file.flush()
                os.fsync(file.fileno())
            trial.unlink()
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            raise storage_error("write in", self.path, error) from error

    @property
    def locked(self) -> bool:
        """Whether we own the lock. False after `lock` on a file system without locks."""
        return self._descriptor is not None

    def lock(self) -> None:
        """Take the lock; BusyError names the process that has it."""
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
            if error.errno not in _LOCKLESS:
                raise storage_error("lock", self.path, error) from error
            return
        self._descriptor = descriptor
        # A forked child shares the lock and would keep it alive after our death.
        os.register_at_fork(after_in_child=self._close)

    def release(self) -> None:
        """Release the lock; the file stays, since removing it could release somebody else's."""
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
    """Who owns the lock; an owner may have locked it this moment and not yet written its name."""
    for _ in range(10):
        try:
            owner = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
        except (ValueError, KeyError, TypeError):
            time.sleep(0.02)
    return "another process that left no name in its lock"


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"run name {name[: _LONGEST_NAME + 1]!r} ({len(name)} characters) is refused; "
            f"use at most {_LONGEST_NAME} letters, digits, '.', '_' and '-', "
            "the first a letter or digit"
        )
    return name


def _numbered(parent: Path, stem: str) -> Path:
    """Create `<stem>-<n>` with the next free n; mkdir decides between two processes."""
    pattern = re.compile(re.escape(stem) + r"-([0-9]{1,9})")
    try:
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
    except (OSError, ValueError) as error:
        raise storage_error("make a run folder in", parent, error) from error


def claim_run_folder(path: Path) -> RunFolder:
    """The folder of a new run at this path: created, writable, locked, without an earlier run."""
    folder = _locked(RunFolder(path))
    if folder.holds_run:
        folder.release()
        raise ConfigError(
            f"{path} already holds a run; resume it with `convoy resume {quote(str(path))}`, "
            "or choose another --output"
        )
    return folder


def reclaim_run_folder(path: Path) -> RunFolder:
    """The folder of a run that begins, or begins again because it has no checkpoint yet."""
    folder = _locked(RunFolder(path))
    folder.forget_run()
    return folder


def claim_new_folder(config: RunConfig) -> RunFolder:
    """The folder of a new run: as asked for, or the next of its kind."""
    report, output = config.report, config.checkpoint.checkpoint_output_path
    if output is not None:
        return claim_run_folder(Path(output))
    stem = f"{config.network.model}-{config.data.data}"
    return new_run_folder(Path(report.log_dir), report.name, stem, report.name_suffix)


def new_run_folder(
    parent: Path, name: str | None, stem: str, suffix: str | None = None
) -> RunFolder:
    """The folder of a new run: the given name, or the stem with the next free number."""
    ending = "" if suffix is None else f"-{suffix}"
    if name is not None:
        return claim_run_folder(parent / _checked_name(name + ending))
    return claim_run_folder(_numbered(parent, _checked_name(stem + ending)))


def open_run_folder(path: Path) -> RunFolder:
    """The folder of a run to resume: writable and locked; ConfigError if it holds no run."""
    folder = RunFolder(path)
    if not folder.holds_run:
        raise ConfigError(f"{path} holds no run; start one with `convoy train --output …`")
    return _locked(folder)


def _locked(folder: RunFolder) -> RunFolder:
    folder.prepare()
    folder.lock()
    return folder
