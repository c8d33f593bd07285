"""Photos prepared by other processes: the same ones, and a crash costs one record."""

import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from photo_files import damage, photo_paths, write_folder

from convoy.data.description import Description
from convoy.data.images.window import Rule
from convoy.data.photos import STRICT, Photos, Tolerance, TrainingPhotos, ValidationPhotos
from convoy.data.processes import COMMAND, ProcessView
from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import Ledger
from convoy.data.records.record import BadRecordError
from convoy.data.source import Ids, Pixels
from convoy.data.view import View
from convoy.errors import WorkerLostError

SIZE = 32
# Longer than what one process prepares at a time, so that a batch takes two requests.
EVERY = np.arange(70)

# A loader whose decoder crashes, as a library in C would, on photos of one size in bytes.
FRAGILE = """
import os, signal, sys
from convoy.data import loader, photos

size = int(sys.argv.pop(1))

def fragile(encoded, *rest, whole=photos.training_photo):
    if len(encoded) == size:
        os.kill(os.getpid(), signal.SIGSEGV)
    whole(encoded, *rest)

photos.training_photo = fragile
loader.main()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), train=70)


def photos_of(root: Path) -> Photos:
    return Photos(open_folder(root, "train"), "train")


def description(root: Path, rule: Rule | None = Rule.PYTORCH) -> Description:
    return Description(str(root), "train", SIZE, 5, None if rule is None else rule.name, False)


def seen(view: View, ids: Ids = EVERY) -> tuple[Pixels, tuple[int, ...]]:
    out = np.zeros((len(ids), SIZE, SIZE, 3), np.uint8)
    unread = view(ids, 1, out)
    return out, unread


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "convoy.data.loader" in one.cmdline()]


@pytest.mark.parametrize("rule", [Rule.PYTORCH, None])
def test_photos_are_the_same_from_another_process(root: Path, rule: Rule | None) -> None:
    photos = photos_of(root)
    view: View = ValidationPhotos(photos, SIZE)
    if rule is not None:
        view = TrainingPhotos(photos, SIZE, 5, rule)
    made, unread = seen(ProcessView(photos, description(root, rule), STRICT, 1))

    assert unread == ()
    assert np.array_equal(made, seen(view)[0])


def test_processes_end_with_their_view(root: Path) -> None:
    view = ProcessView(photos_of(root), description(root), STRICT, 1)
    seen(view)
    before = len(children())
    del view

    assert (before, len(children())) == (1, 0)


def test_a_bad_photo_is_judged_as_if_it_were_read_here(tmp_path: Path) -> None:
    root = write_folder(tmp_path)
    path = photo_paths(root, "train")[5]
    damage(path)
    ids = np.arange(12)
    photos = photos_of(root)
    with pytest.raises(BadRecordError) as ended:
        seen(ProcessView(photos, description(root), STRICT, 1), ids)
    tolerance = Tolerance(Ledger(10))
    made = seen(ProcessView(photos, description(root), tolerance, 1), ids)
    here = seen(TrainingPhotos(photos, SIZE, 5, tolerance=Tolerance(Ledger(10))), ids)

    assert str(ended.value).startswith(f"{path}: damaged JPEG:")
    assert made[1] == here[1] == (5,)
    assert np.array_equal(made[0], here[0])
    assert [one.file for one in tolerance.ledger.records] == [str(path)]


def fragile(path: Path, script: Path) -> tuple[str, ...]:
    script.write_text(FRAGILE)
    return sys.executable, str(script), str(path.stat().st_size)


def test_a_crash_of_the_decoder_costs_one_record_and_no_more(root: Path, tmp_path: Path) -> None:
    culprit = photo_paths(root, "train")[20]
    command = fragile(culprit, tmp_path / "fragile.py")
    same = [path for path in photo_paths(root, "train") if path.stat().st_size == int(command[2])]
    photos, tolerance = photos_of(root), Tolerance(Ledger(10))
    whole = seen(TrainingPhotos(photos, SIZE, 5))[0]
    made, unread = seen(ProcessView(photos, description(root), tolerance, 1, command))
    (bad,) = tolerance.ledger.records

    assert same == [culprit]
    assert unread == (20,)
    assert (bad.file, bad.reason) == (
        str(culprit),
        "it ended the process that decoded it (SIGSEGV)",
    )
    assert np.array_equal(np.delete(made, 20, 0), np.delete(whole, 20, 0))


def test_a_crash_ends_a_run_that_tolerates_nothing(root: Path, tmp_path: Path) -> None:
    culprit = photo_paths(root, "train")[3]
    command = fragile(culprit, tmp_path / "fragile.py")
    with pytest.raises(BadRecordError, match="it ended the process that decoded it"):
        seen(ProcessView(photos_of(root), description(root), STRICT, 1, command), EVERY[:8])


def test_a_loader_that_cannot_start_is_no_bad_record(root: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit(3)")
    view = ProcessView(photos_of(root), description(root), Tolerance(Ledger(10)), 1, command)
    with pytest.raises(WorkerLostError, match="did not start: exit code 3"):
        seen(view)


def test_loaders_are_started_by_this_python() -> None:
    assert (sys.executable, "-m", "convoy.data.loader") == COMMAND
