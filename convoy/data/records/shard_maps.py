"""Shards mapped into memory: stretches of them by place, only as long as they are what was indexed.

Before every read the file is looked at: one that was replaced, or cut, ends the run with a
message, where the map would show old bytes or kill the process.
"""

import mmap
import os
import resource
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from convoy.config.user_text import printable
from convoy.data.records.frames import Bytes
from convoy.data.records.index import IndexedFile
from convoy.errors import DataError

_MOST_OPEN = 1024


class ShardMaps:
    """The shards of a split, opened when they are needed. Safe from any thread."""

    def __init__(self, folder: Path, files: Sequence[IndexedFile]) -> None:
        self._folder = folder
        self._files = files
        self._open: OrderedDict[int, Bytes] = OrderedDict()
        self._lock = Lock()
        # Every map holds a file descriptor, and others need some too.
        self._most = min(_MOST_OPEN, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))

    def __reduce__(self) -> tuple[type["ShardMaps"], tuple[Path, Sequence[IndexedFile]]]:
        return ShardMaps, (self._folder, self._files)

    def path(self, file: int) -> Path:
        return self._folder / self._files[file].name

    def take(self, file: int, offset: int, size: int) -> Bytes:
        """A copy: what is checked is then what is used, whatever happens to the file."""
        taken = np.empty(size, np.uint8)
        # numpy lets other threads run while it copies, so a page that comes from the disk stops
        # nobody else.
        np.copyto(taken, self.glance(file, offset, size))
        return taken

    def glance(self, file: int, offset: int, size: int) -> Bytes:
        """Where it lies: for a few words of a record, without reading all of it."""
        self._check_unchanged(file)
        return self._mapped(file)[offset : offset + size]

    def _check_unchanged(self, file: int) -> None:
        path, then = self.path(file), self._files[file]
        try:
            now = os.stat(path)  # noqa: PTH116 - three times as fast as pathlib's
        except OSError as error:
            raise DataError(f"{printable(str(path))}: {error.strerror}, during the run") from error
        if (now.st_size, now.st_mtime_ns) != (then.bytes, then.mtime_ns):
            raise DataError(
                f"{printable(str(path))}: changed during the run: {then.bytes} bytes written at "
                f"{then.mtime_ns / 1e9:.3f}, now {now.st_size} at {now.st_mtime_ns / 1e9:.3f}; "
                f"put the old file back or start anew"
            )

    def _mapped(self, file: int) -> Bytes:
        with self._lock:
            mapped = self._open.get(file)
            if mapped is None:
                mapped = self._open[file] = self._map(file)
                if len(self._open) > self._most:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(file)
            return mapped

    def _map(self, file: int) -> Bytes:
        path = self.path(file)
        try:
            with path.open("rb") as opened:
                mapped = mmap.mmap(
                    opened.fileno(), self._files[file].bytes, access=mmap.ACCESS_READ
                )
        except (OSError, ValueError) as error:
            raise DataError(f"{printable(str(path))}: cannot be mapped: {error}") from error
        return np.frombuffer(mapped, np.uint8)
