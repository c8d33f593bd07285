"""Read encoded photos as pixels of one size: a random crop of each photo, or its center crop.

Photos can be read in separate processes, so that a decoder crash costs one photo, not the run. A
process runs `python -m convoy.data.sources.photo_readers`. Requests and replies are lines of JSON
on its pipes; the pixels are in shared memory.
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
from typing import Any, Protocol

import numpy as np
import torch

from convoy.config.sections.data import DEFAULT_VALIDATION_SHARE
from convoy.data.images.crop import CenterRule, Window, training_windows
from convoy.data.images.decode import ImageError, ImageHeader, read_header
from convoy.data.images.resize import load_center_crop, load_cropped_photo, load_training_photo
from convoy.data.progress import no_op
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.open import open_records, stored_crop_size
from convoy.data.records.record import EncodedImage, Records, locate_errors
from convoy.data.source import Ids, Pixels, Split, StepCallback
from convoy.errors import ConvoyError, DataError, WorkerLostError


class PhotoReader(Protocol):
    """Reads, decodes and crops photos; thread-safe."""

    def read_batch(self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback) -> list[int]:
        """Write all readable photos to `out`; return the positions of the others."""

    def read_one(self, index: int, sample: int, epoch: int, out: Pixels) -> None:
        """Decode record `index` into `out`, with the random crop of `sample`.

        Raises BadRecordError if the record is bad.
        """


@dataclass(frozen=True)
class PhotoOptions:
    """Options that determine the pixels of a photo in an epoch."""

    size: int
    seed: int = 0
    rule: str | None = None  # of random crops, `pytorch` or `tensorflow`; None: center crop
    use_boxes: bool = False
    center: CenterRule = "center"  # without random crops
    reduced: bool = False  # decode photos for center crops at a reduced size


def make_reader(
    records: Records, options: PhotoOptions, stored_size: int | None = None
) -> PhotoReader:
    """Make a reader. `stored_size` is the size of photos that were stored as center crops."""
    if options.rule is None:
        return CenterCropReader(records, options, stored_size)
    return RandomCropReader(records, options)


@dataclass(frozen=True)
class CenterCropReader:
    """Reads the center crop of each photo."""

    records: Records
    options: PhotoOptions
    stored_size: int | None = None

    def read_batch(self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback) -> list[int]:
        failed = []
        for position, index in enumerate(ids.tolist()):
            try:
                self.read_one(index, index, epoch, out[position], on_step)
            except BadRecordError:
                failed.append(position)
        return failed

    def read_one(
        self, index: int, sample: int, epoch: int, out: Pixels, on_step: StepCallback = no_op
    ) -> None:
        del sample, epoch
        record = self.records.read(index)
        on_step("read")
        with locate_errors(self.records, index):
            options = self.options
            if self.stored_size == options.size:
                load_cropped_photo(record.encoded, out)
            else:
                load_center_crop(record.encoded, options.size, out, options.center, options.reduced)
        on_step("decode")


@dataclass(frozen=True)
class RandomCropReader:
    """Reads a random crop of each photo, flipped with probability 1/2."""

    records: Records
    options: PhotoOptions

    def read_batch(self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback) -> list[int]:
        """Read the headers first, so that the windows of a batch are sampled at once."""
        opened: dict[int, tuple[EncodedImage, ImageHeader]] = {}
        for position, index in enumerate(ids.tolist()):
            try:
                record = self.records.read(index)
                on_step("read")
                opened[position] = record, read_header(record.encoded)
                on_step("decode")
            except (BadRecordError, ImageError):
                continue
        windows = self._sample_windows(list(opened.values()), ids[list(opened)], epoch)
        on_step("crop")
        failed = set(range(len(ids))) - set(opened)
        for (position, (record, header)), window in zip(opened.items(), windows, strict=True):
            try:
                load_training_photo(record.encoded, header, *window, out[position], on_step)
            except ImageError:
                failed.add(position)
        return sorted(failed)

    def read_one(self, index: int, sample: int, epoch: int, out: Pixels) -> None:
        record = self.records.read(index)
        with locate_errors(self.records, index):
            header = read_header(record.encoded)
            (window,) = self._sample_windows([(record, header)], np.array([sample]), epoch)
            load_training_photo(record.encoded, header, *window, out)

    def _sample_windows(
        self, opened: Sequence[tuple[EncodedImage, ImageHeader]], ids: Ids, epoch: int
    ) -> list[tuple[Window, bool]]:
        """Sample the window of each photo, and whether it is flipped."""
        options, sizes = self.options, [(header.height, header.width) for _, header in opened]
        windows, flipped = training_windows(
            np.array(sizes, np.int64).reshape(-1, 2),
            ids,
            options.seed,
            epoch,
            options.rule or "pytorch",
            [record.boxes for record, _ in opened] if options.use_boxes else None,
        )
        return list(zip(map(Window._make, windows.tolist()), flipped.tolist(), strict=True))


WORKER_COMMAND = (sys.executable, "-m", "convoy.data.sources.photo_readers")

_MAX_REQUEST_PHOTOS = 64


@dataclass(frozen=True)
class ReaderJob:
    """The photos that a process reads, and how it reads them."""

    folder: str
    split: Split
    options: PhotoOptions
    validation_share: float = DEFAULT_VALIDATION_SHARE

    def shared_pixels(self, file: int) -> Pixels:
        """Map the pixels of one request, in a file that both processes share."""
        shape = (_MAX_REQUEST_PHOTOS, self.options.size, self.options.size, 3)
        memory = mmap.mmap(file, int(np.prod(shape)))
        return np.frombuffer(memory, np.uint8).reshape(shape)


class ReaderProcessCrash(Exception):
    """A reader process crashed; the message is the signal or exit code."""


class ReaderProcess:
    """A reader process, started on the first request and restarted after a crash."""

    def __init__(self, job: ReaderJob, command: Sequence[str]) -> None:
        self._job = job
        self._command = list(command)
        # An unnamed file: nothing is left behind, however this process ends.
        with tempfile.TemporaryFile() as file:
            file.truncate(_MAX_REQUEST_PHOTOS * job.options.size**2 * 3)
            self._file = os.dup(file.fileno())
        self.pixels = job.shared_pixels(self._file)
        self._process: subprocess.Popen[str] | None = None

    def request(self, message: dict[str, Any]) -> Any:
        """Send a request and return the reply; the pixels are then in shared memory."""
        return self._send_and_receive(self._process or self._start(), message)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [*self._command, str(self._file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._file],
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            self._send_and_receive(self._process, asdict(self._job))
        except ReaderProcessCrash as crash:
            raise WorkerLostError(f"a reader process failed to start: {crash}") from crash
        return self._process

    def _send_and_receive(self, process: subprocess.Popen[str], request: dict[str, Any]) -> Any:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            code = process.wait()
            self.stop()
            raise ReaderProcessCrash(
                signal.Signals(-code).name if code < 0 else f"exit code {code}"
            )
        reply = json.loads(line)
        if "error" in reply:
            self.stop()
            raise DataError(reply["error"])
        return reply


class ProcessReader:
    """Reads the photos of a job in a pool of processes, with the same result as in-process."""

    def __init__(
        self,
        records: Records,
        job: ReaderJob,
        processes: int,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._records = records
        self._idle: LifoQueue[ReaderProcess] = LifoQueue()
        for _ in range(processes):
            process = ReaderProcess(job, command)
            weakref.finalize(self, process.stop)
            self._idle.put(process)

    @contextmanager
    def _idle_process(self) -> Iterator[ReaderProcess]:
        process = self._idle.get()
        try:
            yield process
        finally:
            self._idle.put(process)

    def read_batch(self, ids: Ids, epoch: int, out: Pixels, on_step: StepCallback) -> list[int]:
        failed: list[int] = []
        with self._idle_process() as process:
            for start in range(0, len(ids), _MAX_REQUEST_PHOTOS):
                chunk = ids[start : start + _MAX_REQUEST_PHOTOS].tolist()
                try:
                    positions = process.request({"ids": chunk, "epoch": epoch})["failed"]
                    out[start : start + len(chunk)] = process.pixels[: len(chunk)]
                except ReaderProcessCrash:  # the caller retries each photo to find the bad one
                    positions = range(len(chunk))
                failed += (start + position for position in positions)
        on_step("read")
        return failed

    def read_one(self, index: int, sample: int, epoch: int, out: Pixels) -> None:
        request = {"index": index, "sample": sample, "epoch": epoch}
        with self._idle_process() as process:
            try:
                bad = process.request(request).get("bad")
            except ReaderProcessCrash as crash:
                bad = f"decoding it crashed the reader process ({crash})"
            if bad is not None:
                raise BadRecordError(self._records.location(index), bad)
            out[:] = process.pixels[0]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    torch.set_num_threads(1)
    fields = json.loads(sys.stdin.readline())
    options = PhotoOptions(**fields["options"])
    job = ReaderJob(fields["folder"], fields["split"], options, fields["validation_share"])
    pixels = job.shared_pixels(int(sys.argv[1]))
    try:
        records = open_records(Path(job.folder), job.split, validation_share=job.validation_share)
        reader = make_reader(records, job.options, stored_crop_size(records))
        _reply({})
        for line in sys.stdin:
            _reply(_handle_request(reader, json.loads(line), pixels))
    except ConvoyError as error:
        _reply({"error": str(error)})


def _handle_request(reader: PhotoReader, request: Any, pixels: Pixels) -> dict[str, Any]:
    if "ids" in request:
        ids = np.array(request["ids"], np.int64)
        return {"failed": reader.read_batch(ids, request["epoch"], pixels[: len(ids)], no_op)}
    try:
        reader.read_one(request["index"], request["sample"], request["epoch"], pixels[0])
        return {}
    except BadRecordError as error:
        return {"bad": error.reason}


def _reply(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
