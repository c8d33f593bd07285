"""What a conversion remembers of itself, whole or cut off anywhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from convoy.data.records.manifest import JOURNAL, NAME, LeftOut, WrittenPart, open_journal
from convoy.errors import ConfigError

WHO: dict[str, Any] = {"source": {"a": 1}, "form": "tfrecord", "shuffle": None, "splits": {}}
DONE = [
    WrittenPart(f"train-{number}", number, "ab", 3, (LeftOut(7, "bad"),) * number)
    for number in range(3)
]


def write(target: Path) -> Path:
    with open_journal(target, WHO) as journal:
        for done in DONE:
            journal.add(done)
    return target / JOURNAL


def test_what_was_added_is_known_again(tmp_path: Path) -> None:
    write(tmp_path / "to")
    with open_journal(tmp_path / "to", WHO) as journal:
        assert list(journal.done.values()) == DONE


def test_cut_anywhere_it_knows_all_lines_that_are_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "to")
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        lines = whole[:end].count(b"\n")
        with open_journal(tmp_path / "to", WHO) as journal:
            assert list(journal.done.values()) == DONE[: max(0, lines - 1)]
            journal.add(DONE[2])
        with open_journal(tmp_path / "to", WHO) as journal:
            assert journal.done["train-2"] == DONE[2]


def test_an_empty_journal_beside_other_files_is_not_ours_to_go_on(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b"")
    (tmp_path / "train-00000-of-00001").write_bytes(b"somebody's")

    with (
        pytest.raises(ConfigError, match="not empty, 'train-00000-of-00001' is in it"),
        open_journal(tmp_path, WHO),
    ):
        pass


@pytest.mark.parametrize("text", ["{}", "[]", "nothing", '{"splits": 3}', '{"splits": {}}'])
def test_a_manifest_of_another_program_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)

    with (
        pytest.raises(ConfigError, match="not a manifest of this program"),
        open_journal(tmp_path, WHO),
    ):
        pass
    assert not (tmp_path / JOURNAL).exists()


def test_a_journal_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(json.dumps(["what"]) + "\n")

    with pytest.raises(ConfigError, match="holds another conversion"), open_journal(tmp_path, WHO):
        pass
