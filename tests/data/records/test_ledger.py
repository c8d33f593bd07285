"""The ledger of bad records: shared by all processes, with a limit."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convoy.data.records.ledger import (
    LEDGER_NAME,
    BadRecord,
    BadRecordError,
    Ledger,
    RecordLocation,
)
from convoy.errors import DataError, StorageError


def bad_record(number: int, reason: str = "the checksum is wrong") -> BadRecord:
    location = RecordLocation("train-00003-of-00008", 1000 * number, number)
    return BadRecord.from_error(BadRecordError(location, reason), "train")


def test_a_record_that_is_added_repeatedly_counts_once():
    ledger = Ledger(limit=1)
    for _ in range(3):
        ledger.add(bad_record(5))

    assert ledger.records == [bad_record(5)]


def test_a_record_with_several_reasons_counts_once(tmp_path: Path):
    first, second = (Ledger(limit=1, path=tmp_path / LEDGER_NAME) for _ in range(2))
    first.add(bad_record(5))
    second.add(bad_record(5, "the image is damaged"))

    assert [record.reason for record in second.records] == ["the checksum is wrong"]


def test_exceeding_the_limit_ends_the_run_with_the_full_list(tmp_path: Path):
    ledger = Ledger(limit=10, path=tmp_path / LEDGER_NAME)
    for number in range(10):
        ledger.add(bad_record(number))
    with pytest.raises(DataError) as caught:
        ledger.add(bad_record(10))

    assert str(caught.value).startswith("11 bad records, --max-bad-records allows 10:")
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        f"train-00003-of-00008: byte {1000 * number}, record {number}: the checksum is wrong"
        for number in range(11)
    ]


def test_processes_of_a_run_share_the_count(tmp_path: Path):
    first, second = (Ledger(limit=2, path=tmp_path / LEDGER_NAME) for _ in range(2))
    first.add(bad_record(1))
    second.add(bad_record(1))
    second.add(bad_record(2))

    assert first.records == second.records == [bad_record(1), bad_record(2)]
    with pytest.raises(DataError, match="3 bad records"):
        first.add(bad_record(3))


def test_a_resumed_run_knows_its_bad_records(tmp_path: Path):
    Ledger(limit=2, path=tmp_path / LEDGER_NAME).add(bad_record(1))
    later = Ledger(limit=1, path=tmp_path / LEDGER_NAME)

    assert list(map(str, later.records)) == [str(bad_record(1))]
    with pytest.raises(DataError, match="2 bad records"):
        later.add(bad_record(2))


def test_nothing_is_added_after_the_limit_is_exceeded(tmp_path: Path):
    ledger = Ledger(limit=1, path=tmp_path / LEDGER_NAME)
    ledger.add(bad_record(1))
    for number in (2, 3, 4):
        with pytest.raises(DataError, match="2 bad records"):
            ledger.add(bad_record(number))

    assert ledger.records == [bad_record(1), bad_record(2)]


def test_a_line_truncated_by_a_crash_is_ignored(tmp_path: Path):
    Ledger(limit=9, path=tmp_path / LEDGER_NAME).add(bad_record(1))
    with (tmp_path / LEDGER_NAME).open("ab") as file:
        file.write(b'{"split": "tra\n')

    assert Ledger(limit=9, path=tmp_path / LEDGER_NAME).records == [bad_record(1)]


def test_new_records_are_reported_once(tmp_path: Path):
    ledger = Ledger(limit=9, path=tmp_path / LEDGER_NAME)
    ledger.add(bad_record(1))
    first = ledger.new_records()
    Ledger(limit=9, path=tmp_path / LEDGER_NAME).add(bad_record(2))

    assert (first, ledger.new_records(), ledger.new_records()) == (
        [bad_record(1)],
        [bad_record(2)],
        [],
    )


def test_many_threads_write_complete_lines(tmp_path: Path):
    ledger = Ledger(limit=500, path=tmp_path / LEDGER_NAME)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: ledger.add(bad_record(number % 100)), range(400)))
    lines = [json.loads(line) for line in (tmp_path / LEDGER_NAME).read_text().splitlines()]

    assert sorted(line["record"] for line in lines) == list(range(100))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_read_only_folder_is_a_storage_error(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match=LEDGER_NAME):
        Ledger(limit=9, path=tmp_path / LEDGER_NAME).add(bad_record(1))


def test_without_a_path_the_list_is_in_memory_only():
    ledger = Ledger(limit=3)
    ledger.add(bad_record(1))

    assert ledger.path is None and ledger.records == [bad_record(1)]
