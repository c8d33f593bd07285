"""Photos read in other processes: equal pixels, and a crash loses only one record."""

import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.photo_files import damage, photo_paths, write_folder

from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import BadRecordError, Ledger
from convoy.data.source import Ids, Pixels, View
from convoy.data.sources.photo_readers import (
    WORKER_COMMAND,
    PhotoOptions,
    ProcessReader,
    ReaderJob,
    make_reader,
)
from convoy.data.sources.photos import PhotoSource, PhotoView
from convoy.errors import DataError, WorkerLostError

SIZE = 32
# More than a process reads at a time, so that a batch takes two requests.
ALL_IDS = np.arange(70)
RANDOM_CROP = PhotoOptions(SIZE, 5, "pytorch")

# A reader process that crashes on photos of this size in bytes, as a C library would.
CRASHING_READER = """
import os, signal, sys
from convoy.data.sources import photo_readers

size = int(sys.argv.pop(1))

def crash_or_load(encoded, *rest, load=photo_readers.load_training_photo):
    if len(encoded) == size:
        os.kill(os.getpid(), signal.SIGSEGV)
    return load(encoded, *rest)

photo_readers.load_training_photo = crash_or_load
photo_readers.main()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), train=70)


def open_photos(root: Path) -> PhotoSource:
    return PhotoSource(open_folder(root, "train"), "train")


def local_view(
    root: Path, options: PhotoOptions = RANDOM_CROP, ledger: Ledger | None = None
) -> PhotoView:
    photos = open_photos(root)
    return PhotoView(photos, SIZE, make_reader(photos.records, options), ledger)


def remote_view(
    root: Path,
    options: PhotoOptions = RANDOM_CROP,
    ledger: Ledger | None = None,
    command: tuple[str, ...] = WORKER_COMMAND,
) -> PhotoView:
    photos, job = open_photos(root), ReaderJob(str(root), "train", options)
    return PhotoView(photos, SIZE, ProcessReader(photos.records, job, 1, command), ledger)


def view_pixels(view: View, ids: Ids = ALL_IDS) -> tuple[Pixels, tuple[int, ...]]:
    out = np.zeros((len(ids), SIZE, SIZE, 3), np.uint8)
    unreadable = view(ids, 1, out)
    return out, unreadable


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "convoy.data.sources.photo_readers" in child.cmdline()
    ]


@pytest.mark.parametrize("options", [RANDOM_CROP, PhotoOptions(SIZE)])
def test_another_process_reads_the_same_pixels(root: Path, options: PhotoOptions) -> None:
    output, unreadable = view_pixels(remote_view(root, options))

    assert unreadable == ()
    assert np.array_equal(output, view_pixels(local_view(root, options))[0])


def test_processes_end_with_their_view(root: Path) -> None:
    view = remote_view(root)
    view_pixels(view)
    before = len(children())
    del view

    assert (before, len(children())) == (1, 0)


@pytest.mark.parametrize("options", [RANDOM_CROP, PhotoOptions(SIZE)])
def test_a_bad_photo_has_the_same_effect_as_in_process(
    tmp_path: Path, options: PhotoOptions
) -> None:
    root = write_folder(tmp_path)
    path = photo_paths(root, "train")[5]
    damage(path)
    ids = np.arange(12)
    with pytest.raises(BadRecordError) as caught:
        view_pixels(remote_view(root, options), ids)
    ledger = Ledger(10)
    output = view_pixels(remote_view(root, options, ledger), ids)
    expected = view_pixels(local_view(root, options, Ledger(10)), ids)

    assert str(caught.value).startswith(f"{path}: damaged JPEG:")
    assert output[1] == expected[1] == (5,)
    assert np.array_equal(output[0], expected[0])
    assert [record.file for record in ledger.records] == [str(path)]


def crashing_command(path: Path, script: Path) -> tuple[str, ...]:
    script.write_text(CRASHING_READER)
    return sys.executable, str(script), str(path.stat().st_size)


def test_a_crash_of_the_decoder_loses_only_one_record(root: Path, tmp_path: Path) -> None:
    culprit = photo_paths(root, "train")[20]
    command = crashing_command(culprit, tmp_path / "crashing_reader.py")
    equally_large = [
        path for path in photo_paths(root, "train") if path.stat().st_size == int(command[2])
    ]
    ledger = Ledger(10)
    full = view_pixels(local_view(root))[0]
    output, unreadable = view_pixels(remote_view(root, ledger=ledger, command=command))
    (bad,) = ledger.records

    assert equally_large == [culprit]
    assert unreadable == (20,)
    assert (bad.file, bad.reason) == (
        str(culprit),
        "decoding it crashed the reader process (SIGSEGV)",
    )
    assert np.array_equal(np.delete(output, 20, 0), np.delete(full, 20, 0))


def test_a_crash_is_an_error_if_bad_records_are_not_allowed(root: Path, tmp_path: Path) -> None:
    culprit = photo_paths(root, "train")[3]
    command = crashing_command(culprit, tmp_path / "crashing_reader.py")
    with pytest.raises(BadRecordError, match="crashed the reader process"):
        view_pixels(remote_view(root, command=command), ALL_IDS[:8])


def test_a_process_that_cannot_start_is_not_a_bad_record(root: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit(3)")
    with pytest.raises(WorkerLostError, match="failed to start: exit code 3"):
        view_pixels(remote_view(root, ledger=Ledger(10), command=command))


def test_a_missing_folder_ends_the_run_with_its_name(root: Path, tmp_path: Path) -> None:
    photos, job = open_photos(root), ReaderJob(str(tmp_path), "train", RANDOM_CROP)
    view = PhotoView(photos, SIZE, ProcessReader(photos.records, job, 1), Ledger(10))
    with pytest.raises(DataError, match=tmp_path.name):
        view_pixels(view)


def test_processes_use_the_same_python() -> None:
    assert (sys.executable, "-m", "convoy.data.sources.photo_readers") == WORKER_COMMAND
