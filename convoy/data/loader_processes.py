"""Photos that other processes read: a decoder that crashes costs one photo, not the run.

A process is `python -m convoy.data.loader_processes`. Requests and answers are lines of JSON on
its pipes; the pixels are in memory that both share.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import LifoQueue
from typing import Any

import numpy as np
import torch

from convoy.data.progress import ignore
from convoy.data.records.open import cropped_side, open_records
from convoy.data.records.record import BadRecordError, Records
from convoy.data.source import Ids, Pixels, Split
from convoy.data.sources.photo_reader import PhotoOptions, PhotoReader, make_reader
from convoy.data.sources.source import OnStep, no_steps
from convoy.errors import ConvoyError, DataError, WorkerLostError

COMMAND = (sys.executable, "-m", "convoy.data.loader_processes")

_CHUNK = 64  # photos of a request


@dataclass(frozen=True)
class LoaderJob:
    """Which photos a process reads, and how."""

    folder: str
    split: Split
    options: PhotoOptions

    def shared_pixels(self, file: int) -> Pixels:
        """The pixels of one request, in a file that both processes have mapped."""
        shape = (_CHUNK, self.options.size, self.options.size, 3)
        memory = mmap.mmap(file, int(np.prod(shape)))
        return np.frombuffer(memory, np.uint8).reshape(shape)


class ProcessCrash(Exception):
    """A process ended in the middle of its work; the text says how."""


class LoaderProcess:
    """One process, started by the first request and by the first one after a crash."""

    def __init__(self, job: LoaderJob, command: Sequence[str]) -> None:
        self._job = job
        self._command = list(command)
        # A file without a name: nothing of it is left, however this process ends.
        with tempfile.TemporaryFile() as file:
            file.truncate(_CHUNK * job.options.size**2 * 3)
            self._file = os.dup(file.fileno())
        self.pixels = job.shared_pixels(self._file)
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer; when it is there, so are the pixels."""
        return self._exchange(self._process or self._started(), request)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [*self._command, str(self._file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._file],
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            self._exchange(self._process, asdict(self._job))
        except ProcessCrash as crash:
            raise WorkerLostError(f"a loader process did not start: {crash}") from crash
        return self._process

    def _exchange(self, process: subprocess.Popen[str], request: dict[str, Any]) -> Any:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            code = process.wait()
            self.end()
            raise ProcessCrash(signal.Signals(-code).name if code < 0 else f"exit code {code}")
        answer = json.loads(line)
        if "error" in answer:
            self.end()
            raise DataError(answer["error"])
        return answer


class ProcessReader:
    """The same photos as the reader that the job describes, by that many processes."""

    def __init__(
        self, records: Records, job: LoaderJob, processes: int, command: Sequence[str] = COMMAND
    ) -> None:
        self._records = records
        self._idle: LifoQueue[LoaderProcess] = LifoQueue()
        pool = [LoaderProcess(job, command) for _ in range(processes)]
        for process in pool:
            self._idle.put(process)
        weakref.finalize(self, _end_all, pool)

    @contextmanager
    def _process(self) -> Iterator[LoaderProcess]:
        process = self._idle.get()
        try:
            yield process
        finally:
            self._idle.put(process)

    def fill(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> list[int]:
        failed: list[int] = []
        with self._process() as process:
            for start in range(0, len(ids), _CHUNK):
                chunk = ids[start : start + _CHUNK].tolist()
                try:
                    positions = process.ask({"ids": chunk, "epoch": epoch})["failed"]
                    out[start : start + len(chunk)] = process.pixels[: len(chunk)]
                except ProcessCrash:  # which photo it was shows when each is read alone
                    positions = range(len(chunk))
                failed += (start + position for position in positions)
        on_step("read")
        return failed

    def fill_one(self, number: int, sample: int, epoch: int, out: Pixels) -> None:
        request = {"number": number, "sample": sample, "epoch": epoch}
        with self._process() as process:
            try:
                bad = process.ask(request).get("bad")
            except ProcessCrash as crash:
                bad = f"it ended the process that decoded it ({crash})"
            if bad is not None:
                raise BadRecordError(self._records.location(number), bad)
            out[:] = process.pixels[0]


def _end_all(processes: list[LoaderProcess]) -> None:
    for process in processes:
        process.end()


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks decides when to end
    torch.set_num_threads(1)
    given = json.loads(sys.stdin.readline())
    job = LoaderJob(given["folder"], given["split"], PhotoOptions(**given["options"]))
    pixels = job.shared_pixels(int(sys.argv[1]))
    try:
        reader = _open(job)
        _say({})
        for line in sys.stdin:
            _say(_answer(reader, json.loads(line), pixels))
    except ConvoyError as error:
        _say({"error": str(error)})


def _open(job: LoaderJob) -> PhotoReader:
    records = open_records(Path(job.folder), job.split, ignore, ignore)
    return make_reader(records, job.options, cropped_side(records))


def _answer(reader: PhotoReader, request: Any, pixels: Pixels) -> dict[str, Any]:
    if "ids" in request:
        ids = np.array(request["ids"], np.int64)
        return {"failed": reader.fill(ids, request["epoch"], pixels[: len(ids)], no_steps)}
    try:
        reader.fill_one(request["number"], request["sample"], request["epoch"], pixels[0])
        return {}
    except BadRecordError as error:
        return {"bad": error.reason}


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
