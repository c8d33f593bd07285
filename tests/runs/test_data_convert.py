"""`convoy data convert`: kills, interrupts, full disks, and training on the result."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.run_convoy import Process, SlowFileOperations, convoy, wait_until
from support.small_photos import converted, trained_weights, tree, write_photos

from convoy.data.records.manifest import JOURNAL_NAME
from convoy.errors import ExitCode

MANY_CLASSES = {f"n{number:02}": 4 for number in range(20)}
FORMATS = ("folder", "tfrecord", "webdataset")


def arguments(source: Path, target: Path, data_format: str) -> list[str | Path]:
    shards = [] if data_format == "folder" else ["--records-per-file=1"]
    return ["data", "convert", source, target, "--to", data_format, "--workers=2", *shards]


def finished_parts(target: Path) -> int:
    """The number of finished parts."""
    shards = [path for path in target.glob("*-*") if not path.name.startswith(".")]
    folders = [path for path in target.glob("*/n*") if path.is_dir()]
    return len(shards) + len(folders)


@pytest.mark.processes
@pytest.mark.parametrize("data_format", FORMATS)
def test_a_conversion_killed_repeatedly_gives_the_same_bytes(
    data_format: str, tmp_path: Path
) -> None:
    source = write_photos(tmp_path / "photos", MANY_CLASSES)
    assert convoy(*arguments(source, tmp_path / "reference", data_format)).code == 0
    target = tmp_path / "to"
    codes = [
        kill_after_parts(1 + finished_parts(target), arguments(source, target, data_format))
        for _ in range(4)
    ]
    result = convoy(*arguments(source, target, data_format))

    assert codes == [-signal.SIGKILL] * 4
    assert result.code == 0
    assert tree(target) == tree(tmp_path / "reference")


def slow_renames(num_fast: int) -> SlowFileOperations:
    """Delay renames of temporary files after the first ones."""
    return SlowFileOperations("os.rename", ".tmp-", num_fast)


def kill_after_parts(count: int, line: list[str | Path]) -> int:
    """Start a conversion and kill it when `count` parts are finished."""
    target = Path(line[3])
    process = Process(line, target.parent, slowed=slow_renames(count - finished_parts(target)))
    wait_until(lambda: finished_parts(target) >= count or not process.alive)
    process.send(signal.SIGKILL)
    return process.wait().code


@pytest.mark.processes
def test_parts_finished_before_a_kill_are_not_written_again(tmp_path: Path) -> None:
    source = write_photos(tmp_path / "photos", MANY_CLASSES)
    target = tmp_path / "to"
    kill_after_parts(3, arguments(source, target, "tfrecord"))
    journal = (target / JOURNAL_NAME).read_text().splitlines()[1:]
    names = [json.loads(line)["name"] for line in journal if line.endswith("}")]
    times = {name: (target / name).stat().st_mtime_ns for name in names}
    assert convoy(*arguments(source, target, "tfrecord")).code == 0

    assert times
    assert {name: (target / name).stat().st_mtime_ns for name in names} == times


@pytest.mark.processes
def test_an_interrupted_conversion_ends_with_130_and_leaves_no_partial_file(tmp_path: Path) -> None:
    source = write_photos(tmp_path / "photos", {f"n{number:02}": 60 for number in range(10)})
    target = tmp_path / "to"
    line = [*arguments(source, target, "tfrecord"), "--debug"]
    process = Process(line, tmp_path, slowed=slow_renames(50))
    wait_until(lambda: finished_parts(target) >= 50 or not process.alive)
    process.send(signal.SIGINT)
    result = process.wait()

    assert result.code == ExitCode.INTERRUPTED
    assert "Traceback" not in result.err
    assert not [name for name in tree(target) if ".tmp-" in name]
    assert convoy(*arguments(source, target, "tfrecord")).code == 0


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_full_disk_ends_with_6_and_leaves_no_partial_file(
    data_format: str, tmp_path: Path
) -> None:
    source = write_photos(tmp_path / "photos")
    target = tmp_path / "to"
    with limited_file_size(800):
        result = convoy(*arguments(source, target, data_format))

    assert result.code == ExitCode.STORAGE
    assert "Run the same command to continue" in result.err
    assert set(tree(target)) == {JOURNAL_NAME}
    assert convoy(*arguments(source, target, data_format)).code == 0


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_photos(tmp_path / "photos")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("convoy.files.os.fsync", full)
    result = convoy(*arguments(source, tmp_path / "to", "tfrecord"))

    assert result.code == ExitCode.STORAGE
    assert "No space left on device; finished parts are kept" in result.err


def test_two_conversions_at_once_into_one_folder_are_refused(tmp_path: Path) -> None:
    source = write_photos(tmp_path / "photos")
    target = tmp_path / "to"
    target.mkdir()
    script = f"import fcntl, sys; file = open({str(target / JOURNAL_NAME)!r}, 'a'); "
    script += "fcntl.flock(file, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"locked\n"
        result = convoy(*arguments(source, target, "tfrecord"))
        process.communicate()

    assert result.code == ExitCode.BUSY
    assert "another process is converting into this folder" in result.err


@pytest.mark.processes
def test_training_on_every_format_of_the_photos_gives_the_same_weights(
    tmp_path: Path,
) -> None:
    source = write_photos(tmp_path / "photos", {"a": 9, "b": 8, "c": 10}, validation=2)
    found = {trained_weights(source, tmp_path / "run", "--image-size=32")}
    for data_format in FORMATS:
        data = converted(source, tmp_path / data_format, data_format, shard_records=4)  # type: ignore[arg-type]
        found.add(trained_weights(data, tmp_path / f"run-{data_format}", "--image-size=32"))

    assert len(found) == 1
