"""Photos read in other processes: equal pixels, and a crash costs one record."""

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
# Longer than what one process prepares at a time, so that a batch takes two requests.
EVERY = np.arange(70)
WINDOWS = PhotoOptions(SIZE, 5, "pytorch")

# A loader whose decoder crashes, as a library in C would, on photos of one size in bytes.
FRAGILE = """
import os, signal, sys
from convoy.data.sources import photo_readers

size = int(sys.argv.pop(1))

def fragile(encoded, *rest, whole=photo_readers.load_training_photo):
    if len(encoded) == size:
        os.kill(os.getpid(), signal.SIGSEGV)
    return whole(encoded, *rest)

photo_readers.load_training_photo = fragile
photo_readers.main()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), train=70)


def photos_of(root: Path) -> PhotoSource:
    return PhotoSource(open_folder(root, "train"), "train")


def here(root: Path, options: PhotoOptions = WINDOWS, ledger: Ledger | None = None) -> PhotoView:
    photos = photos_of(root)
    return PhotoView(photos, SIZE, make_reader(photos.records, options), ledger)


def elsewhere(
    root: Path,
    options: PhotoOptions = WINDOWS,
    ledger: Ledger | None = None,
    command: tuple[str, ...] = WORKER_COMMAND,
) -> PhotoView:
    photos, job = photos_of(root), ReaderJob(str(root), "train", options)
    return PhotoView(photos, SIZE, ProcessReader(photos.records, job, 1, command), ledger)


def seen(view: View, ids: Ids = EVERY) -> tuple[Pixels, tuple[int, ...]]:
    out = np.zeros((len(ids), SIZE, SIZE, 3), np.uint8)
    unread = view(ids, 1, out)
    return out, unread


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "convoy.data.sources.photo_readers" in child.cmdline()
    ]


@pytest.mark.parametrize("options", [WINDOWS, PhotoOptions(SIZE)])
def test_photos_are_the_same_from_another_process(root: Path, options: PhotoOptions) -> None:
    output, unread = seen(elsewhere(root, options))

    assert unread == ()
    assert np.array_equal(output, seen(here(root, options))[0])


def test_processes_end_with_their_view(root: Path) -> None:
    view = elsewhere(root)
    seen(view)
    before = len(children())
    del view

    assert (before, len(children())) == (1, 0)


@pytest.mark.parametrize("options", [WINDOWS, PhotoOptions(SIZE)])
def test_a_bad_photo_has_the_same_effect_as_in_process(
    tmp_path: Path, options: PhotoOptions
) -> None:
    root = write_folder(tmp_path)
    path = photo_paths(root, "train")[5]
    damage(path)
    ids = np.arange(12)
    with pytest.raises(BadRecordError) as ended:
        seen(elsewhere(root, options), ids)
    ledger = Ledger(10)
    output = seen(elsewhere(root, options, ledger), ids)
    local = seen(here(root, options, Ledger(10)), ids)

    assert str(ended.value).startswith(f"{path}: damaged JPEG:")
    assert output[1] == local[1] == (5,)
    assert np.array_equal(output[0], local[0])
    assert [record.file for record in ledger.records] == [str(path)]


def fragile(path: Path, script: Path) -> tuple[str, ...]:
    script.write_text(FRAGILE)
    return sys.executable, str(script), str(path.stat().st_size)


def test_a_crash_of_the_decoder_costs_only_one_record(root: Path, tmp_path: Path) -> None:
    culprit = photo_paths(root, "train")[20]
    command = fragile(culprit, tmp_path / "fragile.py")
    same = [path for path in photo_paths(root, "train") if path.stat().st_size == int(command[2])]
    ledger = Ledger(10)
    full = seen(here(root))[0]
    output, unread = seen(elsewhere(root, ledger=ledger, command=command))
    (bad,) = ledger.records

    assert same == [culprit]
    assert unread == (20,)
    assert (bad.file, bad.reason) == (
        str(culprit),
        "decoding it crashed the reader process (SIGSEGV)",
    )
    assert np.array_equal(np.delete(output, 20, 0), np.delete(full, 20, 0))


def test_a_crash_ends_a_run_without_tolerance(root: Path, tmp_path: Path) -> None:
    culprit = photo_paths(root, "train")[3]
    command = fragile(culprit, tmp_path / "fragile.py")
    with pytest.raises(BadRecordError, match="crashed the reader process"):
        seen(elsewhere(root, command=command), EVERY[:8])


def test_a_process_that_cannot_start_is_not_a_bad_record(root: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit(3)")
    with pytest.raises(WorkerLostError, match="failed to start: exit code 3"):
        seen(elsewhere(root, ledger=Ledger(10), command=command))


def test_a_missing_folder_ends_the_run_with_its_name(root: Path, tmp_path: Path) -> None:
    photos, job = photos_of(root), ReaderJob(str(tmp_path), "train", WINDOWS)
    view = PhotoView(photos, SIZE, ProcessReader(photos.records, job, 1), Ledger(10))
    with pytest.raises(DataError, match=tmp_path.name):
        seen(view)


def test_processes_use_the_same_python() -> None:
    assert (sys.executable, "-m", "convoy.data.sources.photo_readers") == WORKER_COMMAND
