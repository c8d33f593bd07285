"""The journal of a conversion, complete or truncated anywhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from convoy.data.records.manifest import (
    JOURNAL_NAME,
    MANIFEST_NAME,
    SkippedRecord,
    WrittenPart,
    open_journal,
)
from convoy.errors import ConfigError

IDENTITY: dict[str, Any] = {"source": {"a": 1}, "form": "tfrecord", "shuffle": None, "splits": {}}
PARTS = [
    WrittenPart(f"train-{number}", number, "ab", 3, (SkippedRecord(7, "bad"),) * number)
    for number in range(3)
]


def write(target: Path) -> Path:
    with open_journal(target, IDENTITY) as journal:
        for part in PARTS:
            journal.add(part)
    return target / JOURNAL_NAME


def test_added_parts_are_read_back(tmp_path: Path) -> None:
    write(tmp_path / "to")
    with open_journal(tmp_path / "to", IDENTITY) as journal:
        assert list(journal.done.values()) == PARTS


def test_a_truncated_journal_keeps_all_complete_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "to")
    content = path.read_bytes()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        lines = content[:end].count(b"\n")
        with open_journal(tmp_path / "to", IDENTITY) as journal:
            assert list(journal.done.values()) == PARTS[: max(0, lines - 1)]
            journal.add(PARTS[2])
        with open_journal(tmp_path / "to", IDENTITY) as journal:
            assert journal.done["train-2"] == PARTS[2]


def test_an_empty_journal_beside_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_bytes(b"")
    (tmp_path / "train-00000-of-00001").write_bytes(b"other data")

    with (
        pytest.raises(ConfigError, match="not empty, it contains 'train-00000-of-00001'"),
        open_journal(tmp_path, IDENTITY),
    ):
        pass


@pytest.mark.parametrize("text", ["{}", "[]", "nothing", '{"splits": 3}', '{"splits": {}}'])
def test_a_manifest_of_another_program_is_refused_and_unchanged(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(text)

    with (
        pytest.raises(ConfigError, match="not a manifest written by convoy"),
        open_journal(tmp_path, IDENTITY),
    ):
        pass
    assert not (tmp_path / JOURNAL_NAME).exists()


def test_a_journal_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_text(json.dumps(["unrelated"]) + "\n")

    with (
        pytest.raises(ConfigError, match="contains a different conversion"),
        open_journal(tmp_path, IDENTITY),
    ):
        pass
