"""From encoded photos to pixels of one size: a random window of each photo, or its centre.

Other processes may read them: a decoder that crashes costs one photo, not the run. A process is
`python -m convoy.data.sources.photo_readers`. Requests and answers are lines of JSON on its pipes;
the pixels are in memory that both share.
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

from convoy.data.images.crop import CropRule, Window, training_windows
from convoy.data.images.decode import Header, ImageError, read_header
from convoy.data.images.resize import crop, pixels_for, validation_photo, whole_photo
from convoy.data.progress import ignore
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.open import cropped_side, open_records
from convoy.data.records.record import EncodedImage, Records
from convoy.data.source import Ids, OnStep, Pixels, Split, no_steps
from convoy.errors import ConvoyError, DataError, WorkerLostError


class PhotoReader(Protocol):
    """Reads, decodes and crops photos, safe from any thread."""

    def fill(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep) -> list[int]:
        """Write all photos that can be read; returns the positions of the others."""

    def fill_one(self, number: int, sample: int, epoch: int, out: Pixels) -> None:
        """Write record `number`, cropped like `sample`; raises BadRecordError if it is bad."""


@dataclass(frozen=True)
class PhotoOptions:
    """What decides the pixels, besides the photo and the epoch."""

    size: int
    seed: int = 0
    rule: str | None = None  # name of the `CropRule` of the random windows; None: the centre
    use_boxes: bool = False


def make_reader(
    records: Records, options: PhotoOptions, cropped: int | None = None
) -> "RandomCropReader | CenterCropReader":
    """`cropped` is the size of photos that were stored as their centres."""
    if options.rule is None:
        return CenterCropReader(records, options.size, cropped)
    return RandomCropReader(records, options, CropRule[options.rule])


@contextmanager
def _located(records: Records, number: int) -> Iterator[None]:
    """A decoder does not know where its photo was stored; the error says it."""
    try:
        yield
    except ImageError as error:
        raise BadRecordError(records.location(number), str(error)) from error


@dataclass(frozen=True)
class CenterCropReader:
    records: Records
    size: int
    cropped: int | None = None

    def fill(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> list[int]:
        del epoch
        failed = []
        for position, number in enumerate(ids.tolist()):
            try:
                record = self.records.read(number)
                on_step("read")
                self._write(record, out[position])
                on_step("decode")
            except (BadRecordError, ImageError):
                failed.append(position)
        return failed

    def fill_one(self, number: int, sample: int, epoch: int, out: Pixels) -> None:
        del sample, epoch
        record = self.records.read(number)
        with _located(self.records, number):
            self._write(record, out)

    def _write(self, record: EncodedImage, out: Pixels) -> None:
        if self.cropped == self.size:
            whole_photo(record.encoded, out)
        else:
            validation_photo(record.encoded, self.size, out)


@dataclass(frozen=True)
class RandomCropReader:
    """A random window of each photo, half of them mirrored."""

    records: Records
    options: PhotoOptions
    rule: CropRule

    def fill(self, ids: Ids, epoch: int, out: Pixels, on_step: OnStep = no_steps) -> list[int]:
        """Headers first: the windows of a whole batch are drawn at once."""
        opened: dict[int, tuple[EncodedImage, Header]] = {}
        for position, number in enumerate(ids.tolist()):
            try:
                record = self.records.read(number)
                on_step("read")
                opened[position] = record, read_header(record.encoded)
                on_step("decode")
            except (BadRecordError, ImageError):
                continue
        windows = self._windows(list(opened.values()), ids[list(opened)], epoch)
        on_step("crop")
        failed = set(range(len(ids))) - set(opened)
        for (position, (record, header)), window in zip(opened.items(), windows, strict=True):
            try:
                self._write(record, header, window, out[position], on_step)
            except ImageError:
                failed.add(position)
        return sorted(failed)

    def fill_one(self, number: int, sample: int, epoch: int, out: Pixels) -> None:
        record = self.records.read(number)
        with _located(self.records, number):
            header = read_header(record.encoded)
            (window,) = self._windows([(record, header)], np.array([sample]), epoch)
            self._write(record, header, window, out, no_steps)

    def _windows(
        self, opened: Sequence[tuple[EncodedImage, Header]], ids: Ids, epoch: int
    ) -> list[tuple[Window, bool]]:
        """The window of each photo, and whether it is mirrored."""
        if not opened:
            return []
        sizes = np.array([(header.height, header.width) for _, header in opened], np.int64)
        boxes = [record.boxes for record, _ in opened] if self.options.use_boxes else None
        seed = self.options.seed
        windows, mirrored = training_windows(sizes, ids, seed, epoch, self.rule, boxes)
        return [
            (Window(*window), flipped)
            for window, flipped in zip(windows.tolist(), mirrored.tolist(), strict=True)
        ]

    def _write(
        self,
        record: EncodedImage,
        header: Header,
        window: tuple[Window, bool],
        out: Pixels,
        on_step: OnStep,
    ) -> None:
        pixels = pixels_for(record.encoded, header, window[0], self.options.size)
        on_step("decode")
        crop(pixels, header, *window, out)
        on_step("crop")


COMMAND = (sys.executable, "-m", "convoy.data.sources.photo_readers")

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
        for _ in range(processes):
            process = LoaderProcess(job, command)
            weakref.finalize(self, process.end)
            self._idle.put(process)

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


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks decides when to end
    torch.set_num_threads(1)
    given = json.loads(sys.stdin.readline())
    job = LoaderJob(given["folder"], given["split"], PhotoOptions(**given["options"]))
    pixels = job.shared_pixels(int(sys.argv[1]))
    try:
        records = open_records(Path(job.folder), job.split, ignore, ignore)
        reader = make_reader(records, job.options, cropped_side(records))
        _say({})
        for line in sys.stdin:
            _say(_answer(reader, json.loads(line), pixels))
    except ConvoyError as error:
        _say({"error": str(error)})


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
