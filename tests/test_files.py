"""Atomic writes: the order that survives a crash, and the messages of storage errors."""

import errno
import os
import stat
from pathlib import Path

import pytest

from convoy import files
from convoy.errors import ExitCode, StorageError
from convoy.files import (
    atomic_path,
    free_bytes,
    make_folder,
    require_space,
    storage_errors,
    sync_folder,
    write_atomically,
)


def failing_call(code: int):
    """A system call that fails with this error."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_the_content_is_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, real_fsync, real_replace = [], os.fsync, os.replace

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(("sync", path.name.partition(".tmp-")[0], path.is_dir() or path.read_text()))
        real_fsync(descriptor)

    def replace(old: Path, new: Path) -> None:
        steps.append(("rename", Path(new).name, True))
        real_replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "plan.json", [b"complete ", b"content"])

    assert steps == [
        ("sync", ".plan.json", "complete content"),
        ("rename", "plan.json", True),
        ("sync", tmp_path.name, True),
    ]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_only_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing_call(errno.ENOSPC))
        with pytest.raises(StorageError, match=r"plan\.json: .*ENOSPC\), [\d,]+ bytes free") as e:
            write_atomically(path, [b"new"])

    assert e.value.code is ExitCode.STORAGE
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"


def test_any_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.onnx"
    path.write_text("old")
    with pytest.raises(ValueError, match="stop"), atomic_path(path, ".onnx") as temporary:
        temporary.write_text("incomplete")
        assert temporary.parent == tmp_path and temporary.suffix == ".onnx"
        raise ValueError("stop")

    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.onnx"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("mask", [0o022, 0o777])
def test_the_umask_never_removes_the_access_of_the_owner(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        make_folder(tmp_path / "run")
        write_atomically(tmp_path / "run" / "file", [b"x"])
    finally:
        os.umask(before)

    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o777 & ~mask | 0o700
    assert (tmp_path / "run" / "file").stat().st_mode & 0o777 == 0o666 & ~mask | 0o600


def test_a_new_folder_is_on_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    make_folder(tmp_path / "run" / "checkpoints")

    assert synced == [tmp_path, tmp_path / "run"]


@pytest.mark.parametrize(
    ("code", "tolerated"), [("EINVAL", True), ("ENOTSUP", True), ("EIO", False)]
)
def test_file_systems_without_fsync_of_folders_are_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, tolerated: bool
) -> None:
    def sync(descriptor: int) -> None:
        assert stat.S_ISDIR(os.fstat(descriptor).st_mode)
        failing_call(errno.__dict__[code])()

    monkeypatch.setattr(os, "fsync", sync)
    if tolerated:
        sync_folder(tmp_path)
    else:
        with pytest.raises(OSError, match="Input/output"):
            sync_folder(tmp_path)


def test_free_space_is_that_of_the_nearest_existing_folder(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)

    found = free_bytes(tmp_path / "not" / "yet" / "there")
    assert found is not None and abs(found - space.f_bavail * space.f_frsize) < 2**30


def test_too_little_space_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    require_space(tmp_path, 1000)
    with (
        pytest.raises(StorageError, match=r"ENOSPC\), 2,000 bytes needed, 1,000 bytes free"),
        storage_errors("save", tmp_path, needed_bytes=2000),
    ):
        require_space(tmp_path, 2000)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("ENOSPC", "free some space"),
        ("EDQUOT", "quota"),
        ("EROFS", "mount"),
        ("EACCES", "permissions"),
        ("EMFILE", "ulimit -n"),
        ("EFBIG", "ulimit -f"),
    ],
)
def test_a_storage_error_contains_action_path_reason_and_remedy(
    tmp_path: Path, code: str, remedy: str
) -> None:
    number = errno.__dict__[code]
    alternative = "choose another --data-dir"
    with (
        pytest.raises(StorageError) as caught,
        storage_errors("write", tmp_path / "x", remedy=alternative),
    ):
        raise OSError(number, "ignored")
    text = str(caught.value)

    assert text.startswith(f"cannot write {tmp_path / 'x'}: {os.strerror(number)} ({code})")
    assert remedy in text and text.endswith(alternative)
    assert ("bytes free" in text) == (code in ("ENOSPC", "EDQUOT"))


def test_unknown_free_space_is_reported_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", failing_call(errno.ENOSYS))

    with (
        pytest.raises(StorageError, match="an unknown number of bytes free"),
        storage_errors("write", tmp_path),
    ):
        raise OSError(errno.ENOSPC, "")


def test_an_invalid_path_is_a_storage_error(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="embedded null byte; choose another --output"),
        storage_errors("write in", tmp_path / "zero\0byte"),
    ):
        pass
