"""Saving in the background, and the one block of memory its copy may take."""

import threading
import time
import weakref
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from checkpoint_samples import fingerprint, ignore, small

from convoy.checkpoint.background import BackgroundSaver, allocate_block
from convoy.checkpoint.format import Contents
from convoy.checkpoint.store import Store
from convoy.errors import CheckpointError, StorageError


class SlowStore(Store):
    """Writes nothing before it is let go."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.go = threading.Event()
        self.under_way = 0
        self.most_under_way = 0

    def save(self, contents: Contents, update: int) -> Path:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        assert self.go.wait(600)
        self.under_way -= 1
        return super().save(contents, update)


class FullStore(Store):
    """A disk that takes nothing from update 2 on."""

    def save(self, contents: Contents, update: int) -> Path:
        if update >= 2:
            raise StorageError("ENOSPC: 10 bytes needed, 0 free")
        return super().save(contents, update)


def test_the_bits_saved_are_those_of_the_call(tmp_path: Path):
    store = SlowStore(tmp_path)
    saver = BackgroundSaver(store, 2, ignore)
    contents = small()
    saver.save(contents, 3)
    contents.model["fc.weight"].zero_()
    contents.optimizer["fc.weight/velocity"].zero_()
    contents.state["loss_scale"] = 1.0
    store.go.set()
    saver.finish()

    assert fingerprint(store.load(3)) == fingerprint(small())


class Watched(Store):
    """Knows where the copy lay that it was given, and whether it is still there."""

    def save(self, contents: Contents, update: int) -> Path:
        parts = (contents.model, contents.optimizer, contents.averages)
        storages = [one.untyped_storage() for part in parts for one in part.values()]
        self.blocks = {one.data_ptr() for one in storages}
        self.storage = weakref.ref(storages[0])
        return super().save(contents, update)


@pytest.mark.parametrize("keep_copy", [True, False])
def test_the_copy_is_kept_for_the_next_save_or_given_back(tmp_path: Path, keep_copy: bool):
    store = Watched(tmp_path)
    saver = BackgroundSaver(store, 2, ignore, keep_copy=keep_copy)
    saver.save(small(1), 1)
    saver.finish()

    assert (store.storage() is not None) == keep_copy


def test_a_copy_to_be_given_back_is_one_block(tmp_path: Path):
    store = Watched(tmp_path)
    saver = BackgroundSaver(store, 2, ignore, keep_copy=False)
    saver.save(small(1), 1)
    saver.finish()

    assert len(store.blocks) == 1


def test_a_copy_is_given_back_when_the_disk_is_full_too(tmp_path: Path):
    class WatchedAndFull(Watched):
        def save(self, contents: Contents, update: int) -> Path:
            super().save(contents, update)
            raise StorageError("ENOSPC")

    store = WatchedAndFull(tmp_path)
    saver = BackgroundSaver(store, 2, ignore, on_failed=ignore, keep_copy=False)
    saver.save(small(1), 1)
    saver.finish()

    assert store.storage() is None


def test_copies_that_are_given_back_hold_the_bits_of_the_call(tmp_path: Path):
    store = SlowStore(tmp_path)
    saver = BackgroundSaver(store, 2, ignore, keep_copy=False)
    contents = small(1)
    saver.save(contents, 1)
    contents.model["fc.weight"].zero_()
    contents.optimizer["fc.weight/velocity"].zero_()
    store.go.set()
    saver.save(small(2), 2)
    saver.finish()

    assert [fingerprint(store.load(n)) for n in (1, 2)] == [fingerprint(small(n)) for n in (1, 2)]


def test_a_finished_save_is_told_on_the_callers_thread(tmp_path: Path):
    told = []
    saver = BackgroundSaver(
        Store(tmp_path),
        2,
        lambda *words: told.append((*words[:2], threading.current_thread())),
    )
    saver.save(small(), 3)
    saver.finish()
    saver.check()

    assert told == [(3, tmp_path / "update-3", threading.main_thread())]


def test_a_save_still_under_way_is_not_told_yet(tmp_path: Path):
    told, store = [], SlowStore(tmp_path)
    saver = BackgroundSaver(store, 2, lambda *words: told.append(words))
    saver.save(small(), 3)
    saver.check()
    before = list(told)
    store.go.set()
    saver.finish()

    assert (before, len(told)) == ([], 1)


def test_a_second_save_waits_for_the_first_and_the_wait_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = SlowStore(tmp_path)

    class Awaited(Future):
        """Whoever waits for a save lets the store go."""

        def exception(self, timeout: float | None = None) -> BaseException | None:
            store.go.set()
            return super().exception(timeout)

    monkeypatch.setattr("concurrent.futures._base.Future", Awaited)
    saver = BackgroundSaver(store, 2, ignore)
    saver.save(small(1), 1)
    saver.save(small(2), 2)
    saver.finish()

    assert (saver.waits, store.most_under_way, store.updates()) == (1, 1, [1, 2])
    assert saver.waited_seconds > 0
    assert [fingerprint(store.load(n)) for n in (1, 2)] == [fingerprint(small(n)) for n in (1, 2)]


def test_a_failure_is_raised_at_the_next_boundary_and_once(tmp_path: Path):
    saver = BackgroundSaver(FullStore(tmp_path), 2, ignore)
    saver.save(small(2), 2)
    with pytest.raises(StorageError, match="checkpoint of update 2 was not saved: ENOSPC"):
        while True:  # updates of a training that goes on
            saver.check()
            time.sleep(0.01)
    saver.check()
    saver.finish()


@pytest.mark.parametrize("call", ["save", "finish"])
def test_a_failure_nobody_asked_about_is_raised_by_the_next_call(tmp_path: Path, call: str):
    saver = BackgroundSaver(FullStore(tmp_path), 2, ignore)
    saver.save(small(2), 2)

    with pytest.raises(StorageError, match="update 2"):
        saver.finish() if call == "finish" else saver.save(small(3), 3)


def test_a_run_that_continues_hears_of_each_failure(tmp_path: Path):
    saved, failed = [], []
    saver = BackgroundSaver(
        FullStore(tmp_path),
        2,
        lambda *words: saved.append(words[0]),
        on_failed=lambda update, error: failed.append((update, str(error)[:6])),
    )
    for update in (1, 2, 3):
        saver.save(small(update), update)
    saver.finish()

    assert (saved, failed) == ([1], [(2, "ENOSPC"), (3, "ENOSPC")])
    assert Store(tmp_path).newest().contents.update == 1


def test_a_bug_is_raised_even_in_a_run_that_continues(tmp_path: Path):
    saver = BackgroundSaver(Store(tmp_path), 2, ignore, on_failed=ignore)
    saver.save(small(3), 4)

    with pytest.raises(CheckpointError, match="contents of update 3 saved as update 4"):
        saver.finish()


@pytest.mark.parametrize(("keep", "left"), [(2, [4, 5]), (None, [1, 2, 3, 4, 5])])
def test_old_ones_go_as_new_ones_come(tmp_path: Path, keep: int | None, left: list[int]):
    store = Store(tmp_path)
    saver = BackgroundSaver(store, keep, ignore)
    for update in range(1, 6):
        saver.save(small(update), update)
    saver.finish()

    assert store.updates() == left


def test_the_one_just_saved_stays_even_when_later_ones_exist(tmp_path: Path):
    store = Store(tmp_path)
    for update in (1, 8, 9):
        store.save(small(update), update)
    saver = BackgroundSaver(store, 2, ignore)
    saver.save(small(3), 3)
    saver.finish()

    assert store.updates() == [3, 8, 9]


def test_no_old_one_goes_when_the_new_one_does_not_read_back(tmp_path: Path):
    class BadDisk(Store):
        def save(self, contents: Contents, update: int) -> Path:
            path = super().save(contents, update)
            if update == 3:
                (path / "model.safetensors").write_bytes(b"")
            return path

    store = BadDisk(tmp_path)
    saver = BackgroundSaver(store, 1, ignore)
    saver.save(small(2), 2)
    saver.save(small(3), 3)
    with pytest.raises(StorageError, match="does not read back"):
        saver.finish()

    assert store.newest().contents.update == 2


def all_kinds() -> Contents:
    """Types of all widths, a scalar, an empty tensor, strides of their own; in an unkind order."""
    square = torch.arange(12.0).reshape(3, 4)
    return Contents(
        model={
            "flag": torch.tensor([True, False, True]),
            "wide": square.double(),
            "count": torch.tensor(7),
            "empty": torch.zeros(0, 4),
            "turned": square.t(),
            "half": square.half(),
        },
        optimizer={"wide/velocity": square / 3},
        state={"update": 1},
    )


def test_a_copy_into_it_holds_the_same_bits():
    for contents in (small(), all_kinds(), Contents({}, state={"update": 0})):
        copy = contents.copy(reuse=allocate_block(contents))

        assert fingerprint(copy) == fingerprint(contents)


def test_all_tensors_of_a_copy_lie_in_it_and_apart():
    contents = all_kinds()
    room = allocate_block(contents)
    copy = contents.copy(reuse=room)
    copied = [one for part in (copy.model, copy.optimizer) for one in part.values()]
    copied = [one for one in copied if one.numel()]
    blocks = {one.untyped_storage().data_ptr() for one in copied}
    spans = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in copied)

    assert len(blocks) == 1
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
