"""Files that must stay as they were first seen, for as long as a run lasts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from convoy.errors import DataError


class Look(NamedTuple):
    """What tells a file from one that took its place."""

    bytes: int
    mtime_ns: int


@contextmanager
def opened(path: bytes) -> Iterator[int]:
    """A file to read from. A pipe put in its place is not waited for."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def look(file: int) -> Look:
    status = os.fstat(file)
    return Look(status.st_size, status.st_mtime_ns)


def refuse_change(name: str, first: Look, now: Look) -> None:
    """The same file as before, or the end of the run."""
    if first.bytes != now.bytes:
        raise replaced(name, f"{first.bytes} bytes at first, now {now.bytes}")
    if first.mtime_ns != now.mtime_ns:
        raise replaced(
            name, f"written at {first.mtime_ns} ns of the clock at first, now at {now.mtime_ns}"
        )


def replaced(name: str, change: str) -> DataError:
    return DataError(
        f"{name}: replaced during the run: {change}; leave the data alone while it is used, "
        "then resume"
    )
