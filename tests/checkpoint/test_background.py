"""Background saving, and the memory block for its copy."""

import math
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.checkpoint_samples import fingerprint, ignore, small

from convoy.checkpoint.background import BackgroundCheckpointWriter, allocate_block
from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.errors import CheckpointError, StorageError


class SlowStore(CheckpointStore):
    """A store that waits for `go` before it writes."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.go = threading.Event()
        self.running = 0
        self.max_running = 0

    def save(self, contents: CheckpointContents) -> Path:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        assert self.go.wait(600)
        self.running -= 1
        return super().save(contents)


class FullStore(CheckpointStore):
    """A store whose disk is full from update 2 on."""

    def save(self, contents: CheckpointContents) -> Path:
        if contents.update >= 2:
            raise StorageError("ENOSPC: 10 bytes needed, 0 free")
        return super().save(contents)


def test_saved_tensors_are_those_at_the_time_of_the_call(tmp_path: Path):
    store = SlowStore(tmp_path)
    writer = BackgroundCheckpointWriter(store, 2, ignore)
    contents = small()
    writer.save(contents)
    contents.model["fc.weight"].zero_()
    contents.optimizer["fc.weight/velocity"].zero_()
    contents.state["loss_scale"] = 1.0
    store.go.set()
    writer.close()

    assert fingerprint(store.load(3)) == fingerprint(small())


class RecordingStore(CheckpointStore):
    """A store that records the storage of the copy."""

    def save(self, contents: CheckpointContents) -> Path:
        parts = (contents.model, contents.optimizer, contents.averages)
        storages = [tensor.untyped_storage() for part in parts for tensor in part.values()]
        self.blocks = {tensor.data_ptr() for tensor in storages}
        self.storage = weakref.ref(storages[0])
        return super().save(contents)


@pytest.mark.parametrize("keep_copy", [True, False])
def test_the_copy_is_reused_for_the_next_save_or_freed(tmp_path: Path, keep_copy: bool):
    store = RecordingStore(tmp_path)
    writer = BackgroundCheckpointWriter(store, 2, ignore, keep_copy=keep_copy)
    writer.save(small(1))
    writer.close()

    assert (store.storage() is not None) == keep_copy


def test_a_copy_to_be_freed_is_one_block(tmp_path: Path):
    store = RecordingStore(tmp_path)
    writer = BackgroundCheckpointWriter(store, 2, ignore, keep_copy=False)
    writer.save(small(1))
    writer.close()

    assert len(store.blocks) == 1


def test_a_copy_is_freed_when_the_disk_is_full(tmp_path: Path):
    class FullRecordingStore(RecordingStore):
        def save(self, contents: CheckpointContents) -> Path:
            super().save(contents)
            raise StorageError("ENOSPC")

    store = FullRecordingStore(tmp_path)
    writer = BackgroundCheckpointWriter(store, 2, ignore, on_failed=ignore, keep_copy=False)
    writer.save(small(1))
    writer.close()

    assert store.storage() is None


def test_freed_copies_contain_the_tensors_at_the_time_of_the_call(tmp_path: Path):
    store = SlowStore(tmp_path)
    writer = BackgroundCheckpointWriter(store, 2, ignore, keep_copy=False)
    contents = small(1)
    writer.save(contents)
    contents.model["fc.weight"].zero_()
    contents.optimizer["fc.weight/velocity"].zero_()
    store.go.set()
    writer.save(small(2))
    writer.close()

    assert [fingerprint(store.load(n)) for n in (1, 2)] == [fingerprint(small(n)) for n in (1, 2)]


def test_a_finished_save_calls_back_on_the_callers_thread(tmp_path: Path):
    calls = []
    writer = BackgroundCheckpointWriter(
        CheckpointStore(tmp_path),
        2,
        lambda *args: calls.append((*args[:2], threading.current_thread())),
    )
    writer.save(small())
    writer.close()
    writer.poll()

    assert calls == [(3, tmp_path / "update-3", threading.main_thread())]


def test_a_pending_save_does_not_call_back(tmp_path: Path):
    calls, store = [], SlowStore(tmp_path)
    writer = BackgroundCheckpointWriter(store, 2, lambda *args: calls.append(args))
    writer.save(small())
    writer.poll()
    before = list(calls)
    store.go.set()
    writer.close()

    assert (before, len(calls)) == ([], 1)


def test_a_second_save_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = SlowStore(tmp_path)

    class ReleasingFuture(Future):
        """Releases the store when a caller waits for the save."""

        def result(self, timeout: float | None = None) -> object:
            store.go.set()
            return super().result(timeout)

    monkeypatch.setattr("concurrent.futures._base.Future", ReleasingFuture)
    writer = BackgroundCheckpointWriter(store, 2, ignore)
    writer.save(small(1))
    writer.save(small(2))
    writer.close()

    assert (store.max_running, store.updates()) == (1, [1, 2])
    assert [fingerprint(store.load(n)) for n in (1, 2)] == [fingerprint(small(n)) for n in (1, 2)]


def test_a_failure_is_raised_once_at_the_next_poll(tmp_path: Path):
    writer = BackgroundCheckpointWriter(FullStore(tmp_path), 2, ignore)
    writer.save(small(2))
    with pytest.raises(StorageError, match="checkpoint of update 2 was not saved: ENOSPC"):
        while True:  # training continues
            writer.poll()
            time.sleep(0.01)
    writer.poll()
    writer.close()


@pytest.mark.parametrize("call", ["save", "close"])
def test_an_unpolled_failure_is_raised_by_the_next_call(tmp_path: Path, call: str):
    writer = BackgroundCheckpointWriter(FullStore(tmp_path), 2, ignore)
    writer.save(small(2))

    with pytest.raises(StorageError, match="update 2"):
        writer.close() if call == "close" else writer.save(small(3))


def test_each_failure_is_reported_to_a_run_that_continues(tmp_path: Path):
    saved, failed = [], []
    writer = BackgroundCheckpointWriter(
        FullStore(tmp_path),
        2,
        lambda *args: saved.append(args[0]),
        on_failed=lambda update, error: failed.append((update, str(error)[:6])),
    )
    for update in (1, 2, 3):
        writer.save(small(update))
    writer.close()

    assert (saved, failed) == ([1], [(2, "ENOSPC"), (3, "ENOSPC")])
    assert CheckpointStore(tmp_path).load_newest().contents.update == 1


def test_a_bug_is_raised_even_in_a_run_that_continues(tmp_path: Path):
    writer = BackgroundCheckpointWriter(CheckpointStore(tmp_path), 2, ignore, on_failed=ignore)
    writer.save(replace(small(3), state={"update": 3, "loss": math.nan}))

    with pytest.raises(CheckpointError, match="update 3 cannot be saved"):
        writer.close()


@pytest.mark.parametrize(("keep", "left"), [(2, [4, 5]), (None, [1, 2, 3, 4, 5])])
def test_old_checkpoints_are_pruned_after_a_save(tmp_path: Path, keep: int | None, left: list[int]):
    store = CheckpointStore(tmp_path)
    writer = BackgroundCheckpointWriter(store, keep, ignore)
    for update in range(1, 6):
        writer.save(small(update))
    writer.close()

    assert store.updates() == left


def test_the_checkpoint_just_saved_is_not_pruned_even_if_later_ones_exist(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    for update in (1, 8, 9):
        store.save(small(update))
    writer = BackgroundCheckpointWriter(store, 2, ignore)
    writer.save(small(3))
    writer.close()

    assert store.updates() == [3, 8, 9]


def test_no_checkpoint_is_pruned_if_the_new_one_cannot_be_read_back(tmp_path: Path):
    class BadDisk(CheckpointStore):
        def save(self, contents: CheckpointContents) -> Path:
            path = super().save(contents)
            if contents.update == 3:
                (path / "model.safetensors").write_bytes(b"")
            return path

    store = BadDisk(tmp_path)
    writer = BackgroundCheckpointWriter(store, 1, ignore)
    writer.save(small(2))
    writer.save(small(3))
    with pytest.raises(StorageError, match="cannot be read back"):
        writer.close()

    assert store.load_newest().contents.update == 2


def mixed_contents() -> CheckpointContents:
    """Dtypes of all sizes, a scalar, an empty tensor and a transposed tensor, in mixed order."""
    square = torch.arange(12.0).reshape(3, 4)
    return CheckpointContents(
        model={
            "flag": torch.tensor([True, False, True]),
            "wide": square.double(),
            "count": torch.tensor(7),
            "empty": torch.zeros(0, 4),
            "transposed": square.t(),
            "half": square.half(),
        },
        optimizer={"wide/velocity": square / 3},
        state={"update": 1},
    )


def test_a_copy_into_a_block_is_bit_identical():
    for contents in (small(), mixed_contents(), CheckpointContents({}, state={"update": 0})):
        copy = contents.copy(reuse=allocate_block(contents))

        assert fingerprint(copy) == fingerprint(contents)


def test_all_tensors_of_a_copy_are_in_the_block_without_overlap():
    contents = mixed_contents()
    block = allocate_block(contents)
    copy = contents.copy(reuse=block)
    copied = [tensor for part in (copy.model, copy.optimizer) for tensor in part.values()]
    copied = [tensor for tensor in copied if tensor.numel()]
    blocks = {tensor.untyped_storage().data_ptr() for tensor in copied}
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in copied)

    assert len(blocks) == 1
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
