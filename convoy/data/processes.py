"""A view whose photos are prepared by other processes.

Each answers one request at a time; the threads of the infeed ask. A process that a decoder takes
with it is started anew, and the photos it had in hand are tried one by one: the one that ends it
again is a bad record like any other.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from queue import LifoQueue
from typing import Any

import numpy as np

from convoy.data.description import ROOM, Description
from convoy.data.photos import Photos, Tolerance
from convoy.data.records.record import BadRecordError
from convoy.data.source import Ids, Pixels
from convoy.data.view import Unread
from convoy.errors import DataError, WorkerLostError

COMMAND = (sys.executable, "-m", "convoy.data.loader")


class LostError(Exception):
    """A process ended in the middle of its work; the text says how."""


class _Bad(Exception):
    """A record among those that were asked for is bad; the text says why."""


class LoaderProcess:
    """One process, started when it is first needed."""

    def __init__(self, wish: Description, command: Sequence[str]) -> None:
        self._wish = wish
        self._command = list(command)
        # A file without a name: nothing of it is left, however this process ends.
        with tempfile.TemporaryFile() as file:
            file.truncate(wish.room_bytes)
            self._file = os.dup(file.fileno())
        self._memory = mmap.mmap(self._file, wish.room_bytes)
        pixels = np.frombuffer(self._memory, np.uint8)
        self.room: Pixels = pixels.reshape(ROOM, wish.size, wish.size, 3)
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> None:
        """The pixels are in the room when it returns."""
        if self._process is None:
            self._start()
        self._say(json.dumps(request))
        self._hear()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [*self._command, str(self._file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._file],
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            self._say(self._wish.as_line())
            self._hear()
        except LostError as error:
            raise WorkerLostError(f"a loader process did not start: {error}") from error

    def _say(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._lost() from error

    def _hear(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise self._lost()
        answer = json.loads(line)
        if "bad" in answer:
            raise _Bad(answer["bad"])
        if "error" in answer:
            raise DataError(answer["error"])

    def _lost(self) -> LostError:
        assert self._process is not None
        code = self._process.wait()
        self._process.communicate()
        self._process = None
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return LostError(how)


class ProcessView:
    """The same photos as the view that is described; bad ones are judged here."""

    def __init__(
        self,
        photos: Photos,
        wish: Description,
        tolerance: Tolerance,
        processes: int,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.photos = photos
        self.size = wish.size
        self.tolerance = tolerance
        self._free: LifoQueue[LoaderProcess] = LifoQueue()
        made = [LoaderProcess(wish, command) for _ in range(processes)]
        for one in made:
            self._free.put(one)
        weakref.finalize(self, _end_all, made)

    def __call__(self, ids: Ids, epoch: int, out: Pixels) -> Unread:
        process = self._free.get()
        try:
            unread: list[int] = []
            for first in range(0, len(ids), ROOM):
                some = slice(first, first + ROOM)
                found = self._some(process, ids[some], epoch, out[some])
                unread.extend(first + place for place in found)
            return tuple(unread)
        finally:
            self._free.put(process)

    def _some(self, process: LoaderProcess, ids: Ids, epoch: int, out: Pixels) -> Unread:
        try:
            process.ask({"ids": ids.tolist(), "epoch": epoch})
            out[:] = process.room[: len(ids)]
            return ()
        except (LostError, _Bad):  # whose fault it is shows when each is asked for alone
            return tuple(
                place
                for place, slot in enumerate(ids.tolist())
                if not self.tolerance.read(
                    self.photos, slot, partial(self._one, process, slot, epoch, out[place])
                )
            )

    def _one(self, process: LoaderProcess, slot: int, epoch: int, out: Pixels, number: int) -> None:
        try:
            process.ask({"slot": slot, "number": number, "epoch": epoch})
            out[:] = process.room[0]
        except _Bad as error:
            raise BadRecordError(self.photos.records.spot(number), str(error)) from error
        except LostError as error:
            reason = f"it ended the process that decoded it ({error})"
            raise BadRecordError(self.photos.records.spot(number), reason) from error


def _end_all(processes: list[LoaderProcess]) -> None:
    for one in processes:
        one.end()
