"""What a conversion wrote down of its shards, against what lies there."""

import json
from pathlib import Path

import pytest
from index_desk import Desk
from index_samples import scan_of

from convoy.data.records.indexing import ShardScan
from convoy.data.records.manifest import JOURNAL, read_class_names, refuse_unfinished
from convoy.errors import DataError


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    desk = Desk(tmp_path / "data")
    for number in range(3):
        desk.write(number, bytes([number, 2]))
    return desk


def listed(desk: Desk) -> None:
    shards = [
        {"name": path.name, "bytes": 2, "records": 2, "sha256": "0" * 64}
        for path in desk.shards().paths
    ]
    table = {"format": "tfrecord", "splits": {"train": {"shards": shards}}}
    (desk.folder / "convoy-manifest.json").write_text(json.dumps(table))


def named(desk: Desk, names: object) -> None:
    table = {"splits": {}, "class_names": names}
    (desk.folder / "convoy-manifest.json").write_text(json.dumps(table))


def complaint(desk: Desk) -> str:
    with pytest.raises(DataError) as caught:
        desk.open()
    return str(caught.value)


def test_a_set_that_is_as_it_was_written_is_used(desk: Desk) -> None:
    listed(desk)

    assert len(desk.open()) == 6


def test_a_shard_cut_between_two_records_is_found_with_both_numbers(desk: Desk) -> None:
    listed(desk)
    desk.open()
    desk.write(1, b"\1")
    said = complaint(desk)

    assert "train-00001-of-00003: 1 records in 1 bytes" in said
    assert "lists 2 in 2; convert the data again" in said


def test_a_cut_is_found_again_by_the_next_run(desk: Desk) -> None:
    listed(desk)
    desk.write(1, b"\1")

    assert complaint(desk) == complaint(desk)


def test_a_shard_with_a_fault_is_left_to_the_policy_with_all_it_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(desk)
    desk.write(1, b"\1")
    scan = desk.scan

    def faulty(path: Path) -> ShardScan:
        return scan_of(None, size=1) if path.name == "train-00001-of-00003" else scan(path)

    monkeypatch.setattr(desk, "scan", faulty)

    assert [fault.number for fault in desk.open().faults] == [2, 3]


def test_a_missing_shard_is_named(desk: Desk) -> None:
    listed(desk)
    desk.shards().paths[2].unlink()

    assert "lists 3 shards, the folder lacks train-00002-of-00003;" in complaint(desk)


def test_a_foreign_shard_is_named(desk: Desk) -> None:
    listed(desk)
    desk.write(8, b"\0")

    assert "has train-00008-of-00003, which is not listed" in complaint(desk)


def test_other_splits_are_none_of_its_business(desk: Desk) -> None:
    table = {"splits": {"validation": {"shards": []}}}
    (desk.folder / "convoy-manifest.json").write_text(json.dumps(table))

    assert len(desk.open()) == 6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"splits": []}',
        '{"splits": {"train": {"shards": [{"name": "a"}]}}}',
        '{"splits": {"train": {"shards": [{"name": "a", "bytes": "2", "records": 2}]}}}',
        "[" * 10_000,
    ],
)
def test_a_manifest_that_is_none_is_refused(text: str, desk: Desk) -> None:
    (desk.folder / "convoy-manifest.json").write_text(text)

    assert "not a manifest of `convoy data convert`" in complaint(desk)


def test_the_names_of_all_classes_are_read(desk: Desk) -> None:
    assert read_class_names(desk.folder) == ()

    named(desk, ["cat", "dog"])

    assert read_class_names(desk.folder) == ("cat", "dog")


@pytest.mark.parametrize("names", ["cat", [1], {"cat": 1}, ["x"] * (2**17 + 1)], ids=type)
def test_class_names_that_are_none_are_refused(desk: Desk, names: object) -> None:
    named(desk, names)

    with pytest.raises(DataError, match="not a manifest"):
        read_class_names(desk.folder)


def test_a_started_conversion_is_no_data_until_its_manifest_is_there(desk: Desk) -> None:
    refuse_unfinished(desk.folder)
    (desk.folder / JOURNAL).write_text("")
    with pytest.raises(DataError, match="has not finished here"):
        refuse_unfinished(desk.folder)
    listed(desk)

    refuse_unfinished(desk.folder)
