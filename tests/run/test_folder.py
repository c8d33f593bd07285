"""Run folders: creation, locking, and errors at startup."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from convoy.config.schema import RunConfig, build_config
from convoy.errors import BusyError, ConfigError, ExitCode, StorageError
from convoy.files import write_atomically
from convoy.run import folder as run_folder
from convoy.run.folder import (
    RunFolder,
    claim_run_folder,
    new_run_folder,
    open_run_folder,
    reclaim_run_folder,
)


def config_with_name(parent: Path, name: str | None) -> RunConfig:
    return build_config({"log_dir": str(parent), "name": name})


OWNER = """
import sys, time
from pathlib import Path
from convoy.run.folder import claim_run_folder
folder = claim_run_folder(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""

OWNER_WITH_CHILD = """
import os, sys, time
from pathlib import Path
from convoy.run.folder import claim_run_folder
folder = claim_run_folder(Path(sys.argv[1]))
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def start(script: str, path: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_every_documented_file_has_its_name():
    folder = RunFolder(Path("runs/x"))
    files = (folder.config, folder.plan, folder.metrics, folder.validation, folder.events)

    assert [file.name for file in (*files, folder.log, folder.checkpoints, folder.summary)] == [
        "config.yaml",
        "plan.json",
        "metrics.jsonl",
        "validation.jsonl",
        "events.jsonl",
        "log.txt",
        "checkpoints",
        "summary.json",
    ]


def test_creating_the_object_accesses_no_file(tmp_path: Path):
    RunFolder(tmp_path / "run")

    assert list(tmp_path.iterdir()) == []


def test_folders_and_files_honor_the_umask(tmp_path: Path):
    before = os.umask(0o027)
    try:
        with claim_run_folder(tmp_path / "a" / "b") as folder:
            write_atomically(folder.summary, [b"{}"])
    finally:
        os.umask(before)
    paths = (tmp_path / "a", folder.path, folder.path / ".lock", folder.summary)

    assert [oct(path.stat().st_mode & 0o777) for path in paths] == ["0o750", "0o750"] + 2 * [
        "0o640"
    ]


def test_the_write_test_leaves_only_the_lock_behind(tmp_path: Path):
    with claim_run_folder(tmp_path / "run"):
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.processes
def test_a_busy_error_names_the_host_and_pid_of_the_owner(tmp_path: Path):
    process, _ = start(OWNER, tmp_path)
    try:
        with pytest.raises(BusyError) as caught:
            claim_run_folder(tmp_path)
    finally:
        kill(process)
    message = str(caught.value)

    assert caught.value.code is ExitCode.BUSY
    assert f"process {process.pid} on {socket.gethostname()} since 20" in message


@pytest.mark.processes
def test_the_lock_is_free_after_kill_9(tmp_path: Path):
    process, _ = start(OWNER, tmp_path)
    kill(process)

    with claim_run_folder(tmp_path) as folder:
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
        assert folder.locked


@pytest.mark.processes
def test_a_forked_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path):
    process, child = start(OWNER_WITH_CHILD, tmp_path)
    process.kill()
    process.wait()
    try:
        os.kill(int(child), 0)  # raises if it does not exist

        with claim_when_free(tmp_path) as folder:
            assert folder.locked
    finally:
        os.kill(int(child), signal.SIGKILL)
        process.communicate()


def claim_when_free(path: Path) -> RunFolder:
    """A new child process releases the lock after a short delay."""
    for _ in range(10_000):
        with suppress(BusyError):
            return claim_run_folder(path)
        time.sleep(0.01)
    return claim_run_folder(path)


@pytest.mark.processes
def test_a_child_that_starts_and_ends_leaves_the_lock_with_its_parent(tmp_path: Path):
    with claim_run_folder(tmp_path):
        child = os.posix_spawn("/bin/true", ["true"], os.environ)
        os.waitpid(child, 0)

        with pytest.raises(BusyError):
            RunFolder(tmp_path).lock()


def test_a_released_folder_can_be_locked_again(tmp_path: Path):
    claim_run_folder(tmp_path).release()

    with claim_run_folder(tmp_path) as folder:
        assert folder.locked
    assert not folder.locked


def test_a_lock_is_respected_before_its_owner_has_written_its_name(tmp_path: Path):
    with claim_run_folder(tmp_path):
        (tmp_path / ".lock").write_text("")

        with pytest.raises(BusyError, match="PID unknown"):
            RunFolder(tmp_path).lock()


def test_a_file_system_without_locks_is_used_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(run_folder.fcntl, "flock", no_locks)

    assert not claim_run_folder(tmp_path).locked


def test_new_folders_get_the_next_number_after_gaps_and_other_files(tmp_path: Path):
    for used in ("net-2", "net-x", "other-9", "net-7"):
        (tmp_path / used).mkdir()
    (tmp_path / "net-8").write_text("a file with the name of a run")

    with new_run_folder(config_with_name(tmp_path, None), "net") as folder:
        assert folder.path == tmp_path / "net-9"


def test_runs_that_start_at_once_get_different_folders(tmp_path: Path):
    def claim(_: int) -> Path:
        with new_run_folder(config_with_name(tmp_path / "runs", None), "net") as folder:
            return folder.path

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(claim, range(40)))

    assert len(set(paths)) == 40


@pytest.mark.parametrize("name", ["a", "resnet50-16.b_2", "9", "x" * 100])
def test_a_valid_name_is_used_unchanged(tmp_path: Path, name: str):
    with new_run_folder(config_with_name(tmp_path, name), "net") as folder:
        assert folder.path == tmp_path / name


@pytest.mark.parametrize(("name", "path"), [("a", "a-fast"), (None, "net-fast-1")])
def test_a_suffix_is_appended_to_the_name(tmp_path: Path, name: str | None, path: str):
    with new_run_folder(config_with_name(tmp_path, name), "net", "fast") as folder:
        assert folder.path == tmp_path / path


@pytest.mark.parametrize("suffix", ["a/b", "é", "x" * 100])
def test_a_suffix_that_is_not_a_plain_file_name_is_refused(tmp_path: Path, suffix: str):
    with pytest.raises(ConfigError, match="run name 'net-"):
        new_run_folder(config_with_name(tmp_path, None), "net", suffix)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../x; rm", "a/b", "-rf", ".hidden", "a\n", "a b", "é", "x" * 101]
)
def test_a_name_that_is_not_a_plain_file_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="run name"):
        new_run_folder(config_with_name(tmp_path, name), "net")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["config.yaml", "metrics.jsonl", "checkpoints/update-3/x"])
def test_a_folder_that_contains_a_run_is_not_started_again(tmp_path: Path, file: str):
    path = tmp_path / "my run"
    (path / file).parent.mkdir(parents=True)
    (path / file).write_text("")

    with pytest.raises(ConfigError, match=r"convoy resume '.*/my run'.*another --output"):
        claim_run_folder(path)
    with open_run_folder(path) as folder:  # the lock was released after the error
        assert folder.locked


def test_an_empty_checkpoint_folder_is_not_a_run(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()

    with claim_run_folder(tmp_path) as folder:
        assert not folder.has_run


def test_a_folder_without_a_run_cannot_be_resumed_and_is_not_created(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not contain a run"):
        open_run_folder(tmp_path / "typo")

    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("path", ["file", "file/deeper", "/proc/convoy-run", "zero\0byte"])
def test_an_unwritable_path_is_a_storage_error(tmp_path: Path, path: str):
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(StorageError, match=r"cannot write to .*another --output") as caught:
        claim_run_folder(tmp_path / path)
    with pytest.raises(StorageError, match="cannot create a run folder"):
        new_run_folder(config_with_name(tmp_path / path, None), "net")
    assert caught.value.code is ExitCode.STORAGE


def test_a_read_only_folder_is_detected_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", read_only)  # permissions do not restrict root

    with pytest.raises(StorageError, match=r"Read-only file system \(EROFS\)"):
        claim_run_folder(tmp_path)


def test_a_folder_is_reclaimed_from_a_run_without_a_checkpoint(tmp_path: Path):
    with reclaim_run_folder(tmp_path / "run") as folder:
        for file in (folder.config, folder.metrics, folder.path / "mine.txt"):
            file.write_text("x")
    with reclaim_run_folder(tmp_path / "run") as again:
        assert again.locked and not again.has_run

    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "mine.txt"]


def test_a_folder_in_use_is_not_reclaimed(tmp_path: Path):
    with claim_run_folder(tmp_path) as folder:
        folder.metrics.write_text("x")
        with pytest.raises(BusyError):
            reclaim_run_folder(tmp_path)

        assert folder.metrics.exists()
