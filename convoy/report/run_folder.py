"""The folder of a run: the names of its files, its birth, and the lock of whoever works in it.

A path comes in; a `RunFolder` goes out that can be written to and, once locked, has one owner.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from types import TracebackType

from convoy.errors import BusyError, ConfigError, StorageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_NAME = 100
_LOCKLESS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}  # network file systems without locks


def storage_error(doing: str, path: Path, error: OSError | ValueError) -> StorageError:
    """What was tried, where, why it failed; the free bytes when room is the reason."""
    reason = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        reason = f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason += f", {_free_bytes(path)} bytes free"
    return StorageError(f"cannot {doing} {path}: {reason}; make room or choose another --output")


def _free_bytes(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """The file has the old content or the whole new one, whatever happens meanwhile."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise storage_error("write", path, error) from error


@dataclass
class RunFolder:
    """The files of one run. Naming them touches nothing; `prepare` and `lock` do.

    As a context it is released at the end. The kernel drops the lock when its process dies.
    """

    path: Path
    _descriptor: int | None = field(default=None, repr=False, compare=False)

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def validation(self) -> Path:
        return self.path / "validation.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def _files(self) -> tuple[Path, ...]:
        told = (self.metrics, self.validation, self.events, self.log)
        return (self.config, self.plan, *told, self.summary)

    def forget_run(self) -> None:
        """Remove what a run left here that has no checkpoint."""
        try:
            for file in self._files:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("clear", self.path, error) from error

    @property
    def holds_run(self) -> bool:
        """Whether an earlier run left anything here."""
        try:
            if any(file.exists() for file in self._files):
                return True
            return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        except OSError as error:
            raise storage_error("look into", self.path, error) from error

    def prepare(self) -> None:
        """Make the folder and write one file in it, so that a later write has a chance."""
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
        """Whether we are the owner. False after `lock` where the file system knows no locks."""
        return self._descriptor is not None

    def lock(self) -> None:
        """Become the owner, or say who is."""
        try:
            # 0o666 less the umask, as for every other file
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise storage_error("lock", self.path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sign(descriptor)
        except OSError as error:
            owner = _owner(descriptor) if error.errno == errno.EWOULDBLOCK else ""
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
        os.register_at_fork(after_in_child=self._forget)

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it could free somebody else's."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._forget()

    def _forget(self) -> None:
        """Close our end without unlocking: in a forked child the lock is the parent's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _sign(descriptor: int) -> None:
    """Write who holds the lock."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode() + b"\n", 0)


def _owner(descriptor: int) -> str:
    """Who signed; the owner may have locked this very moment and not yet signed."""
    for _ in range(10):
        try:
            owner = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
        except (ValueError, KeyError, TypeError):
            time.sleep(0.02)
    return "another process that did not sign its lock"


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"run name {name[: _LONGEST_NAME + 1]!r} ({len(name)} characters) is refused; "
            f"use at most {_LONGEST_NAME} letters, digits, '.', '_' and '-', "
            "the first a letter or digit"
        )
    return name


def _numbered(parent: Path, stem: str) -> Path:
    """Make `<stem>-<n>`, one above the highest there is; mkdir decides between two at once."""
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
    """The folder of a new run at exactly this path: made, tried, locked, and empty of runs."""
    folder = RunFolder(path)
    folder.prepare()
    folder.lock()
    if folder.holds_run:
        folder.release()
        raise ConfigError(
            f"{path} already holds a run; resume it with `convoy resume {quote(str(path))}`, "
            "or choose another --output"
        )
    return folder


def reclaim_run_folder(path: Path) -> RunFolder:
    """The folder of a run that begins, or that ended before its first checkpoint and begins again.

    The caller knows that there is no checkpoint.
    """
    folder = RunFolder(path)
    folder.prepare()
    folder.lock()
    folder.forget_run()
    return folder


def new_run_folder(
    parent: Path, name: str | None, stem: str, suffix: str | None = None
) -> RunFolder:
    """The folder of a new run: the given name, or the stem with the next free number."""
    behind = "" if suffix is None else f"-{suffix}"
    if name is not None:
        return claim_run_folder(parent / _checked_name(name + behind))
    return claim_run_folder(_numbered(parent, _checked_name(stem + behind)))


def open_run_folder(path: Path) -> RunFolder:
    """The folder of a run that goes on: tried and locked; it must hold one."""
    folder = RunFolder(path)
    if not folder.holds_run:
        raise ConfigError(f"{path} holds no run; start one with `convoy train --output …`")
    folder.prepare()
    folder.lock()
    return folder
