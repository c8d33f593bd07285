"""The checkpoint store: list, load, replace, prune and clean up."""

import os
from pathlib import Path

import pytest
from support.checkpoint_samples import fingerprint, names, small

from convoy.checkpoint import store as stores
from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore, find_checkpoint
from convoy.errors import CheckpointError, ExitCode, StorageError

LEFTOVER = "update-7.tmp-0123456789ab"


def make_store(folder: Path, *updates: int) -> CheckpointStore:
    store = CheckpointStore(folder)
    for update in updates:
        store.save(small(update))
    return store


def damage(store: CheckpointStore, update: int, name: str = "model.safetensors"):
    path = store.path(update) / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_only_updates_are_listed_and_sorted_by_number(tmp_path: Path):
    store = make_store(tmp_path, 100, 9, 20, 0)
    other_names = [LEFTOVER, "update-7.old-0123456789ab", "update-07", "update-", "update--1"]
    for name in [*other_names, "update-٣", "latest", "update-1 copy"]:
        (tmp_path / name).mkdir()

    assert store.updates() == [0, 9, 20, 100]


def test_a_missing_folder_has_no_updates(tmp_path: Path):
    assert CheckpointStore(tmp_path / "checkpoints").updates() == []


def test_any_checkpoint_is_loaded_by_update_or_by_path(tmp_path: Path):
    store = make_store(tmp_path, 1, 2)

    assert fingerprint(store.load(1)) == fingerprint(small(1))
    assert fingerprint(store.load(tmp_path / "update-2")) == fingerprint(small(2))


def test_an_explicit_checkpoint_that_is_damaged_is_refused_without_fallback(tmp_path: Path):
    store = make_store(tmp_path, 1, 2)
    damage(store, 2)
    with pytest.raises(CheckpointError, match=r"update-2: model\.safetensors has SHA-256") as e:
        store.load(2)

    assert e.value.code is ExitCode.CHECKPOINT


def test_the_newest_checkpoint_is_found_and_none_is_skipped(tmp_path: Path):
    found = make_store(tmp_path, 9, 10).load_newest()

    assert (found.contents.update, found.path.name, found.skipped) == (10, "update-10", [])


def test_damaged_checkpoints_are_skipped_and_reported(tmp_path: Path):
    store = make_store(tmp_path, 1, 2, 3)
    damage(store, 3, "state.json")
    (store.path(2) / "optimizer.safetensors").unlink()
    found = store.load_newest()

    assert found.contents.update == 1
    assert [line.split(str(tmp_path))[1][:23] for line in found.skipped] == [
        "/update-3: state.json h",
        "/update-2: optimizer.sa",
    ]


def test_a_folder_without_checkpoints_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match=f"no checkpoint in {tmp_path}"):
        CheckpointStore(tmp_path).load_newest()


def test_if_all_checkpoints_are_damaged_each_is_listed(tmp_path: Path):
    store = make_store(tmp_path, 1, 2)
    damage(store, 1)
    damage(store, 2, "MANIFEST.json")
    with pytest.raises(CheckpointError) as caught:
        store.load_newest()

    assert "all 2 checkpoints are damaged" in str(caught.value)
    assert "update-2: MANIFEST.json " in str(caught.value)
    assert "update-1: model.safetensors " in str(caught.value)


def test_saving_identical_contents_again_keeps_the_existing_checkpoint(tmp_path: Path):
    store = make_store(tmp_path, 3)
    inode = store.path(3).stat().st_ino
    store.save(small(3))

    assert names(tmp_path) == ["update-3"]
    assert store.path(3).stat().st_ino == inode


@pytest.mark.parametrize("existing", ["different", "damaged", "file", "link"])
def test_saving_again_replaces_a_different_or_damaged_checkpoint(tmp_path: Path, existing: str):
    store = make_store(tmp_path / "checkpoints", 3)
    target = store.path(3)
    match existing:
        case "different":
            other = CheckpointContents(small(9).model, state={"update": 3})
            store.save(other)
        case "damaged":
            damage(store, 3)
        case "file":
            target.rename(tmp_path / "elsewhere")
            target.write_text("not a folder")
        case "link":
            target.rename(tmp_path / "elsewhere")
            target.symlink_to("nowhere")
    store.save(small(3))

    assert names(store.folder) == ["update-3"]
    assert fingerprint(store.load(3)) == fingerprint(small(3))


def test_a_failed_replacement_is_undone_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = make_store(tmp_path, 3)
    original_rename, renames = os.rename, []

    def fail_second_rename(old, new):
        renames.append(new)
        if len(renames) == 2:
            raise OSError(5, "Input/output error")
        original_rename(old, new)

    monkeypatch.setattr(os, "rename", fail_second_rename)
    with pytest.raises(StorageError):
        store.save(CheckpointContents(small(9).model, state={"update": 3}))
    monkeypatch.undo()
    store.clean_up()

    assert names(tmp_path) == ["update-3"]
    assert fingerprint(store.load(3)) == fingerprint(small(3))


def test_leftovers_are_cleaned_and_nothing_else_is_touched(tmp_path: Path):
    store = make_store(tmp_path, 3)
    store.path(3).rename(tmp_path / "update-3.old-0123456789ab")
    store.save(small(3))
    for name in (LEFTOVER, "write-test.tmp-0123456789ab", "mine.tmp-0123456789ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    store.clean_up()

    assert names(tmp_path) == ["mine.tmp-0123456789ab", "update-3"]


def test_pruning_keeps_the_newest(tmp_path: Path):
    store = make_store(tmp_path, 1, 2, 3, 10)
    store.prune(keep=2)

    assert store.updates() == [3, 10]


def test_damaged_checkpoints_do_not_count_when_pruning(tmp_path: Path):
    store = make_store(tmp_path, 1, 2, 3, 4)
    damage(store, 4)
    damage(store, 2)
    store.prune(keep=2)
    assert store.updates() == [1, 2, 3, 4]

    store.prune(keep=1)
    assert store.updates() == [3, 4]


def test_excluded_checkpoints_do_not_count_when_pruning(tmp_path: Path):
    make_store(tmp_path, 2, 4, 5, 6, 7)
    store = CheckpointStore(tmp_path, counts=lambda update: update % 2 == 0)
    store.prune(keep=2)

    assert store.updates() == [4, 5, 6, 7]


def test_a_verified_checkpoint_that_is_truncated_later_does_not_count(tmp_path: Path):
    store = make_store(tmp_path, 1, 2, 3)
    store.prune(keep=3)
    os.truncate(store.path(3) / "model.safetensors", 5)
    store.prune(keep=2)

    assert store.updates() == [1, 2, 3]


def test_a_replaced_checkpoint_is_hashed_again_when_pruning(tmp_path: Path):
    store = make_store(tmp_path, 1, 2)
    store.verify(2)
    damage(store, 2)
    store.save(small(2))  # replaces the damaged one
    damage(store, 2)
    store.prune(keep=1)

    assert store.updates() == [1, 2]


def test_fewer_checkpoints_than_keep_are_all_kept(tmp_path: Path):
    store = make_store(tmp_path, 1, 2)
    store.prune(keep=5)

    assert store.updates() == [1, 2]


def test_except_update_is_never_pruned(tmp_path: Path):
    store = make_store(tmp_path, 1, 2, 3, 4)
    store.prune(keep=2, except_update=2)

    assert store.updates() == [2, 3, 4]


def test_a_pruned_checkpoint_is_unlisted_before_its_files_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = make_store(tmp_path, 1, 2)
    listed = []
    monkeypatch.setattr("shutil.rmtree", lambda *_: listed.append(store.updates()))
    store.prune(keep=1)

    assert listed == [[2]]


def test_a_checkpoint_that_cannot_be_read_back_is_a_storage_error(tmp_path: Path):
    store = make_store(tmp_path, 1)
    damage(store, 1)

    with pytest.raises(StorageError, match="cannot be read back"):
        store.verify(1)


def test_a_checkpoint_is_hashed_once_by_the_process_that_prunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = make_store(tmp_path, 1, 2)
    hashed, verify = [], stores.reading.verify

    def count_hashes(path: Path, hash_files: bool):
        hashed.extend([path.name] * hash_files)
        return verify(path, hash_files)

    monkeypatch.setattr(stores.reading, "verify", count_hashes)
    store.prune(keep=2)
    store.prune(keep=2)

    assert hashed == ["update-2", "update-1"]


def save_checkpoints(folder: Path, *updates: int) -> None:
    for update in updates:
        CheckpointStore(folder).save(small(update))


def test_a_run_path_loads_its_newest_checkpoint(tmp_path: Path) -> None:
    save_checkpoints(tmp_path / "checkpoints", 3, 12)

    assert find_checkpoint(tmp_path).path == tmp_path / "checkpoints/update-12"
    assert find_checkpoint(tmp_path / "checkpoints").path == tmp_path / "checkpoints/update-12"
    assert find_checkpoint(tmp_path / "checkpoints/update-3").contents.update == 3


def test_a_fine_tuned_run_loads_its_newest_fine_tuning_checkpoint(tmp_path: Path) -> None:
    save_checkpoints(tmp_path / "checkpoints", 12)
    save_checkpoints(tmp_path / "fine-tune/checkpoints", 2, 4)

    assert find_checkpoint(tmp_path).path == tmp_path / "fine-tune/checkpoints/update-4"


def test_fine_tuning_without_a_checkpoint_is_ignored(tmp_path: Path) -> None:
    save_checkpoints(tmp_path / "checkpoints", 12)
    (tmp_path / "fine-tune/checkpoints").mkdir(parents=True)

    assert find_checkpoint(tmp_path).contents.update == 12


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        find_checkpoint(tmp_path)
