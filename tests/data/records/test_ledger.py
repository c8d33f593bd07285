"""Bad records: each counted once over all processes, told once, and not too many."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convoy.data.records.ledger import NAME, BadRecord, BadRecordError, Ledger, RecordLocation
from convoy.errors import DataError, StorageError


def bad(number: int) -> BadRecord:
    spot = RecordLocation("train-00003-of-00008", 1000 * number, number)
    return BadRecord.of(BadRecordError(spot, "the checksum is wrong"), "train")


def test_a_record_counts_once_however_often_it_is_met():
    ledger = Ledger(limit=1)
    for _ in range(3):
        ledger.add(bad(5))

    assert ledger.records == [bad(5)]


def test_the_one_too_many_ends_the_run_with_the_whole_list(tmp_path: Path):
    ledger = Ledger(limit=10, path=tmp_path / NAME)
    for number in range(10):
        ledger.add(bad(number))
    with pytest.raises(DataError) as ended:
        ledger.add(bad(10))

    assert str(ended.value).startswith("11 bad records, --max-bad-records allows 10:")
    assert [line.strip() for line in str(ended.value).splitlines()[1:]] == [
        f"train-00003-of-00008: byte {1000 * number}, record {number}: the checksum is wrong"
        for number in range(11)
    ]


def test_processes_of_a_run_share_their_count(tmp_path: Path):
    one, other = (Ledger(limit=2, path=tmp_path / NAME) for _ in range(2))
    one.add(bad(1))
    other.add(bad(1))
    other.add(bad(2))

    assert one.records == other.records == [bad(1), bad(2)]
    with pytest.raises(DataError, match="3 bad records"):
        one.add(bad(3))


def test_a_run_that_goes_on_knows_its_bad_records(tmp_path: Path):
    Ledger(limit=2, path=tmp_path / NAME).add(bad(1))
    later = Ledger(limit=1, path=tmp_path / NAME)

    assert later.records == [bad(1)]
    with pytest.raises(DataError, match="2 bad records"):
        later.add(bad(2))


def test_nothing_is_added_beyond_the_one_too_many(tmp_path: Path):
    ledger = Ledger(limit=1, path=tmp_path / NAME)
    ledger.add(bad(1))
    for number in (2, 3, 4):
        with pytest.raises(DataError, match="2 bad records"):
            ledger.add(bad(number))

    assert ledger.records == [bad(1), bad(2)]


def test_half_a_line_that_a_crash_has_left_is_no_record(tmp_path: Path):
    Ledger(limit=9, path=tmp_path / NAME).add(bad(1))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"split": "tra\n')

    assert Ledger(limit=9, path=tmp_path / NAME).records == [bad(1)]


def test_new_ones_are_told_once(tmp_path: Path):
    ledger = Ledger(limit=9, path=tmp_path / NAME)
    ledger.add(bad(1))
    first = ledger.new_records()
    Ledger(limit=9, path=tmp_path / NAME).add(bad(2))

    assert (first, ledger.new_records(), ledger.new_records()) == ([bad(1)], [bad(2)], [])


def test_many_threads_write_whole_lines(tmp_path: Path):
    ledger = Ledger(limit=500, path=tmp_path / NAME)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: ledger.add(bad(number % 100)), range(400)))
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]

    assert sorted(line["record"] for line in lines) == list(range(100))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_takes_no_list_is_told(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match=NAME):
        Ledger(limit=9, path=tmp_path / NAME).add(bad(1))


def test_without_a_folder_only_this_process_knows_them():
    ledger = Ledger(limit=3)
    ledger.add(bad(1))

    assert ledger.path is None and ledger.records == [bad(1)]
