"""The manifest of a conversion, compared with the shards on disk."""

import json
from pathlib import Path

import pytest
from support.index_folder import ShardFolder
from support.index_samples import make_scan

from convoy.data.records.index_builder import ShardScan
from convoy.data.records.manifest import JOURNAL_NAME, check_finished, read_class_names
from convoy.errors import DataError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardFolder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ShardFolder(tmp_path / "data")
    for number in range(3):
        folder.write(number, bytes([number, 2]))
    return folder


def write_manifest(folder: ShardFolder) -> None:
    shards = [
        {"name": path.name, "bytes": 2, "records": 2, "sha256": "0" * 64}
        for path in folder.shards().paths
    ]
    table = {"format": "tfrecord", "splits": {"train": {"shards": shards}}}
    (folder.folder / "convoy-manifest.json").write_text(json.dumps(table))


def write_class_names(folder: ShardFolder, names: object) -> None:
    table = {"splits": {}, "class_names": names}
    (folder.folder / "convoy-manifest.json").write_text(json.dumps(table))


def error_message(folder: ShardFolder) -> str:
    with pytest.raises(DataError) as caught:
        folder.open()
    return str(caught.value)


def test_an_unchanged_set_is_used(folder: ShardFolder) -> None:
    write_manifest(folder)

    assert len(folder.open()) == 6


def test_a_shard_truncated_between_records_is_reported_with_both_counts(
    folder: ShardFolder,
) -> None:
    write_manifest(folder)
    folder.open()
    folder.write(1, b"\1")
    message = error_message(folder)

    assert "train-00001-of-00003: 1 record in 1 bytes" in message
    assert "lists 2 in 2" in message


def test_a_truncated_shard_is_reported_by_every_run(folder: ShardFolder) -> None:
    write_manifest(folder)
    folder.write(1, b"\1")

    assert error_message(folder) == error_message(folder)


def test_a_shard_with_a_fault_is_left_to_the_bad_record_policy(
    folder: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(folder)
    folder.write(1, b"\1")
    scan = folder.scan

    def scan_with_fault(path: Path) -> ShardScan:
        return make_scan(None, size=1) if path.name == "train-00001-of-00003" else scan(path)

    monkeypatch.setattr(folder, "scan", scan_with_fault)

    assert [fault.number for fault in folder.open().faults] == [2, 3]


def test_a_missing_shard_is_reported(folder: ShardFolder) -> None:
    write_manifest(folder)
    folder.shards().paths[2].unlink()

    assert "lists 3 shards, but the folder lacks train-00002-of-00003" in error_message(folder)


def test_an_unlisted_shard_is_reported(folder: ShardFolder) -> None:
    write_manifest(folder)
    folder.write(8, b"\0")

    assert "has train-00008-of-00003, which is not listed" in error_message(folder)


def test_manifest_entries_of_other_splits_are_ignored(folder: ShardFolder) -> None:
    table = {"splits": {"validation": {"shards": []}}}
    (folder.folder / "convoy-manifest.json").write_text(json.dumps(table))

    assert len(folder.open()) == 6


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
def test_an_invalid_manifest_is_refused(text: str, folder: ShardFolder) -> None:
    (folder.folder / "convoy-manifest.json").write_text(text)

    assert "not a manifest written by `convoy data convert`" in error_message(folder)


def test_the_names_of_all_classes_are_read(folder: ShardFolder) -> None:
    assert read_class_names(folder.folder) == ()

    write_class_names(folder, ["cat", "dog"])

    assert read_class_names(folder.folder) == ("cat", "dog")


@pytest.mark.parametrize("names", ["cat", [1], {"cat": 1}, ["x"] * (2**17 + 1)], ids=type)
def test_invalid_class_names_are_refused(folder: ShardFolder, names: object) -> None:
    write_class_names(folder, names)

    with pytest.raises(DataError, match="not a manifest"):
        read_class_names(folder.folder)


def test_an_unfinished_conversion_is_refused_until_its_manifest_exists(folder: ShardFolder) -> None:
    check_finished(folder.folder)
    (folder.folder / JOURNAL_NAME).write_text("")
    with pytest.raises(DataError, match="has not finished here"):
        check_finished(folder.folder)
    write_manifest(folder)

    check_finished(folder.folder)
