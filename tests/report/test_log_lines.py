"""Log lines survive crashes, full disks and damage; a resumed run has each update once."""

import json
import math
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.errors import StorageError
from convoy.report.log import JsonLog, TextLog, read_jsonl


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of files; the write that exceeds it is truncated, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount; another test uses a file size limit instead")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def updates(path: Path) -> list[object]:
    return [record["update"] for record in read_jsonl(path)]


def write(path: Path, count: int) -> None:
    lines = JsonLog(path)
    for update in range(1, count + 1):
        lines.append_record({"update": update, "loss": 1 / update})
    lines.close()


def test_appended_records_are_read_back(tmp_path: Path):
    write(tmp_path / "m.jsonl", 3)

    assert list(read_jsonl(tmp_path / "m.jsonl")) == [
        {"update": 1, "loss": 1.0},
        {"update": 2, "loss": 0.5},
        {"update": 3, "loss": 1 / 3},
    ]


def test_a_line_is_written_before_the_file_is_closed(tmp_path: Path):
    lines = JsonLog(tmp_path / "m.jsonl")
    lines.append_record({"update": 1})
    content = (tmp_path / "m.jsonl").read_text()
    lines.close()

    assert content == '{"update": 1}\n'


def test_non_finite_numbers_become_strings(tmp_path: Path):
    lines = JsonLog(tmp_path / "m.jsonl")
    lines.append_record({"a": math.nan, "b": [math.inf], "c": {"d": -math.inf}, "e": 1.5})
    lines.close()

    assert list(read_jsonl(tmp_path / "m.jsonl")) == [
        {"a": "nan", "b": ["inf"], "c": {"d": "-inf"}, "e": 1.5}
    ]


def test_an_undecodable_file_name_is_written_and_read_back(tmp_path: Path):
    name = os.fsdecode(b"caf\xe9")
    lines, text = JsonLog(tmp_path / "m.jsonl"), TextLog(tmp_path / "log.txt")
    lines.append_record({"path": name})
    text.append(name)
    lines.close()
    text.close()

    assert list(read_jsonl(tmp_path / "m.jsonl")) == [{"path": name}]
    assert (tmp_path / "log.txt").read_text() == "caf\\udce9\n"


def test_a_file_that_is_missing_or_empty_has_no_lines(tmp_path: Path):
    (tmp_path / "empty").write_text("")

    assert list(read_jsonl(tmp_path / "missing")) == list(read_jsonl(tmp_path / "empty")) == []


@pytest.mark.parametrize("cut", range(1, 25))
def test_a_truncated_last_line_is_ignored(tmp_path: Path, cut: int):
    path = tmp_path / "m.jsonl"
    write(path, 3)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    records = list(read_jsonl(path))

    # Without its line break the record is still complete.
    assert [record["update"] for record in records] == ([1, 2, 3] if cut == 1 else [1, 2])


def test_a_line_after_a_truncated_line_is_not_damaged(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"update": 1}\n{"upd')
    lines = JsonLog(path)
    lines.append_record({"update": 2})
    lines.close()
    records = list(read_jsonl(path))

    assert records == [{"update": 1}, {"update": 2}]


def test_a_file_of_complete_lines_is_continued_without_an_empty_line(tmp_path: Path):
    for update in (1, 2):
        lines = JsonLog(tmp_path / "m.jsonl")
        lines.append_record({"update": update})
        lines.close()

    assert (tmp_path / "m.jsonl").read_text() == '{"update": 1}\n{"update": 2}\n'


def test_damaged_lines_are_skipped(tmp_path: Path):
    damaged = [b"{", b"\xff\xfe", b"[1]", b"7", b"[" * 100_000, b'"' + b"x" * 3_000_000, b"\0"]
    valid = [b'{"update": %d}' % update for update in range(len(damaged))]
    lines = [line for pair in zip(damaged, valid, strict=True) for line in pair]
    (tmp_path / "m.jsonl").write_bytes(b"\n\n".join(lines) + b"\n")
    records = list(read_jsonl(tmp_path / "m.jsonl"))

    assert [record["update"] for record in records] == list(range(len(damaged)))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_do_not_break_the_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
):
    path = tmp_path_factory.mktemp("fuzz") / "m.jsonl"
    path.write_bytes(content)

    assert all(isinstance(record, dict) for record in read_jsonl(path))


def test_a_long_log_is_read_completely(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    with path.open("w") as file:
        file.writelines(f'{{"update": {update}, "loss": 0.5}}\n' for update in range(200_000))
        file.write('{"update": 2000')

    assert sum(1 for _ in read_jsonl(path)) == 200_000


def test_resuming_keeps_each_update_once(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    write(path, 13)
    lines = JsonLog(path)
    lines.append_record({"note": "without an update"})
    dropped = lines.drop_after(10)
    for update in range(11, 15):
        lines.append_record({"update": update})
    lines.close()

    assert dropped == 3
    assert [record.get("update") for record in read_jsonl(path)] == [
        *range(1, 11),
        None,
        *range(11, 15),
    ]


def test_resuming_drops_a_truncated_line(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"update": 1}\n{"update": 2')
    JsonLog(path).drop_after(5)

    assert path.read_text() == '{"update": 1}\n'


def test_a_file_with_nothing_to_drop_is_not_rewritten(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    write(path, 3)
    before = path.stat().st_ino

    assert JsonLog(path).drop_after(3) == 0
    assert path.stat().st_ino == before
    assert JsonLog(tmp_path / "missing").drop_after(3) == 0


def test_a_rewrite_that_fails_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    write(path, 9)

    with file_size_limit(60), pytest.raises(StorageError, match="EFBIG"):
        JsonLog(path).drop_after(8)
    assert updates(path) == list(range(1, 10))
    assert [file.name for file in tmp_path.iterdir()] == ["m.jsonl"]


def test_a_full_disk_is_reported_once_and_does_not_stop_the_run(tmp_path: Path):
    (tmp_path / "m.jsonl").symlink_to("/dev/full")
    warnings: list[str] = []
    lines = JsonLog(tmp_path / "m.jsonl", warnings.append)
    for update in (10, 20, 30):
        lines.append_record({"update": update})
    lines.close()

    assert lines.failures == 3
    assert lines.missing_lines == "m.jsonl is missing 3 lines (updates 10 to 30)"
    assert warnings == [
        f"{tmp_path}/m.jsonl: cannot write a line: No space left on device; the run continues"
    ]


def test_a_file_that_cannot_be_opened_counts_as_a_failure(tmp_path: Path):
    warnings: list[str] = []
    lines = JsonLog(tmp_path / "gone" / "m.jsonl", warnings.append)
    lines.append_record({"update": 1})
    (tmp_path / "gone").mkdir()
    lines.append_record({"update": 2})
    lines.close()

    assert updates(tmp_path / "gone" / "m.jsonl") == [2]
    assert (lines.failures, len(warnings)) == (1, 1)


def test_a_line_truncated_by_a_full_disk_damages_no_other_line(tmp_path: Path):
    lines = JsonLog(tmp_path / "m.jsonl", lambda _: None)
    lines.append_record({"update": 1})
    with file_size_limit(20):
        lines.append_record({"update": 2})
        lines.append_record({"update": 3})
    lines.append_record({"update": 4})
    lines.append_record({"update": 5})
    lines.close()
    records = list(read_jsonl(tmp_path / "m.jsonl"))

    assert records == [{"update": 1}, {"update": 4}, {"update": 5}]
    assert lines.missing_lines == "m.jsonl is missing 2 lines (updates 2 to 3)"


def test_writing_continues_when_the_disk_has_space_again(small_disk: Path):
    lines = JsonLog(small_disk / "m.jsonl", lambda _: None)
    with pytest.raises(OSError, match="No space left"), (small_disk / "filler").open("wb") as file:
        file.write(bytes(1 << 17))
    while not lines.failures:
        lines.append_record({"update": 1, "text": "x" * 100})
    (small_disk / "filler").unlink()
    lines.append_record({"update": 2})
    lines.close()

    assert updates(small_disk / "m.jsonl")[-1] == 2
    assert lines.failures == 1


def test_every_line_is_valid_json(tmp_path: Path):
    write(tmp_path / "m.jsonl", 5)
    parsed = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]

    assert [record["update"] for record in parsed] == [1, 2, 3, 4, 5]
