"""Writing checkpoints: crash safety and file system errors."""

import errno
import os
import resource
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.checkpoint_samples import fingerprint, ignore, names, small

from convoy import files
from convoy.checkpoint import store as stores
from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.errors import CheckpointError, ExitCode, StorageError


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs privileges that this process does not have")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def large(update: int, megabytes: int = 2) -> CheckpointContents:
    return CheckpointContents(model={"w": torch.ones(megabytes * 2**18)}, state={"update": update})


def failing(code: int):
    """A system call that fails with this error."""

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


def test_files_are_synced_before_the_rename_and_the_rename_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps, original_fsync, original_rename = [], os.fsync, os.rename

    def sync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(("sync", path.name.partition("-3.tmp-")[0], path.stat().st_size > 0))
        original_fsync(descriptor)

    def rename(old, new):
        steps.append(("rename", Path(new).name, True))
        original_rename(old, new)

    store = CheckpointStore(tmp_path)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    store.save(small())

    assert steps == [
        ("sync", "model.safetensors", True),
        ("sync", "optimizer.safetensors", True),
        ("sync", "averages.safetensors", True),
        ("sync", "state.json", True),
        ("sync", "MANIFEST.json", True),
        ("sync", "update", True),
        ("rename", "update-3", True),
        ("sync", tmp_path.name, True),
    ]


def test_a_restored_checkpoint_is_synced_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed while it replaced a checkpoint leaves it under another name."""
    synced, original_fsync = list[list[str]](), os.fsync

    def sync(descriptor: int) -> None:
        folder = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(names(folder) if folder.is_dir() else [])
        original_fsync(descriptor)

    store = CheckpointStore(tmp_path)
    store.save(small())
    store.path(3).rename(tmp_path / "update-3.old-0123456789ab")
    monkeypatch.setattr(os, "fsync", sync)
    store.clean_up()

    assert synced == [["update-3"]]


def test_a_file_system_without_folder_fsync_is_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def sync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", sync)
    CheckpointStore(tmp_path).save(small())

    assert CheckpointStore(tmp_path).load_newest().skipped == []


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o777])
def test_the_umask_never_removes_owner_access(tmp_path: Path, mask: int):
    before = os.umask(mask)
    try:
        folder = CheckpointStore(tmp_path / "run" / "checkpoints").save(small())
    finally:
        os.umask(before)
    folders = {path.stat().st_mode & 0o777 for path in (folder, folder.parent)}
    files = {path.stat().st_mode & 0o777 for path in folder.iterdir()}

    assert (folders, files) == ({0o777 & ~mask | 0o700}, {0o666 & ~mask | 0o600})


def test_insufficient_space_is_detected_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written = []
    monkeypatch.setattr(files, "free_bytes", lambda path: len(path.name))
    monkeypatch.setattr(stores, "write_file", lambda *args: written.append(args))
    with pytest.raises(StorageError, match=r"update-3: .*ENOSPC.* bytes needed, 8 bytes free"):
        CheckpointStore(tmp_path).save(small())

    assert (written, names(tmp_path)) == ([], [])


def test_a_file_system_that_reports_no_free_space_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files, "free_bytes", ignore)
    CheckpointStore(tmp_path).save(small())

    assert names(tmp_path) == ["update-3"]


def test_a_disk_that_is_too_small_keeps_earlier_checkpoints(small_disk: Path):
    store = CheckpointStore(small_disk)
    store.save(small(1))
    with pytest.raises(StorageError, match=r"update-2: .*ENOSPC.* 2,\d+,\d+ bytes needed") as e:
        store.save(large(2))

    assert e.value.code is ExitCode.STORAGE
    assert names(small_disk) == ["update-1"]
    assert fingerprint(store.load_newest().contents) == fingerprint(small(1))


def test_a_disk_that_fills_while_writing_keeps_earlier_checkpoints(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stores, "require_space", ignore)
    store = CheckpointStore(small_disk)
    store.save(small(1))
    with pytest.raises(StorageError, match=r"ENOSPC.* bytes needed, [1-9][\d,]+ bytes free"):
        store.save(large(2))

    assert names(small_disk) == ["update-1"]
    assert fingerprint(store.load_newest().contents) == fingerprint(small(1))


def test_a_read_only_disk_is_detected_at_startup(small_disk: Path):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    with pytest.raises(StorageError, match="EROFS"):
        CheckpointStore(small_disk / "run" / "checkpoints").check_writable()


def test_a_limit_on_the_size_of_files_is_a_storage_error(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    store.save(small(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(StorageError, match="EFBIG"):
            store.save(large(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert names(tmp_path) == ["update-1"]


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EACCES", "EDQUOT", "EIO"])
def test_every_storage_error_is_named_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: str
):
    store = CheckpointStore(tmp_path)
    store.save(small(1))
    monkeypatch.setattr(os, call, failing(errno.__dict__[code]))
    with pytest.raises(StorageError, match=rf"update-2: .*{code}.* needed, [\d,]+ bytes free"):
        store.save(small(2))
    monkeypatch.undo()

    assert names(tmp_path) == ["update-1"]
    assert fingerprint(store.load_newest().contents) == fingerprint(small(1))


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
@pytest.mark.parametrize("code", ["EROFS", "EACCES", "EDQUOT"])
def test_an_unwritable_folder_is_detected_at_startup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: str
):
    monkeypatch.setattr(os, call, failing(errno.__dict__[code]))

    with pytest.raises(StorageError, match=code):
        CheckpointStore(tmp_path / "checkpoints").check_writable()


def test_a_file_in_place_of_the_folder_is_detected_at_startup(tmp_path: Path):
    (tmp_path / "checkpoints").write_text("")

    with pytest.raises(StorageError, match="EEXIST"):
        CheckpointStore(tmp_path / "checkpoints").check_writable()


def test_the_write_test_leaves_an_empty_folder(tmp_path: Path):
    CheckpointStore(tmp_path / "run" / "checkpoints").check_writable()

    assert names(tmp_path / "run" / "checkpoints") == []


@pytest.mark.parametrize("value", [float("nan"), 10**30, "x" * 2**20, object()])
def test_a_state_that_cannot_be_read_back_is_not_saved(tmp_path: Path, value: object):
    contents = CheckpointContents(model={}, state={"update": 3, "value": value})
    with pytest.raises(CheckpointError, match="update 3 cannot be saved"):
        CheckpointStore(tmp_path).save(contents)

    assert names(tmp_path) == []
