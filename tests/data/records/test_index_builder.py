"""Where an index is stored, when it is reused or rebuilt, and the notices."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.index_folder import ShardFolder
from support.index_samples import make_scan, small_index

from convoy.data.progress import ProgressCallbacks
from convoy.data.records import index as index_file
from convoy.data.records import index_builder
from convoy.data.records.index import MAX_FAULTS, Index
from convoy.data.records.index_builder import ShardScan, index_paths, join_scans, open_index
from convoy.data.records.record import NO_BOXES, UNKNOWN_LABEL
from convoy.data.records.shards import ShardSet
from convoy.errors import DataError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardFolder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ShardFolder(tmp_path / "data")
    for number in range(3):
        folder.write(number, bytes([number, 2]))
    return folder


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch, folder: ShardFolder) -> Iterator[None]:
    """A data folder that is not writable, even for root."""
    save = index_file.save

    def refuse(index: Index, path: Path) -> None:
        if path.parent == folder.folder:
            raise PermissionError(13, "Permission denied", str(path))
        save(index, path)

    monkeypatch.setattr(index_file, "save", refuse)
    yield


def test_shards_are_scanned_once_and_joined_in_order(folder: ShardFolder) -> None:
    built = folder.open()
    first = [*folder.scanned]
    stored = folder.open()

    assert sorted(first) == [path.name for path in folder.shards().paths]
    assert folder.scanned == folder.notices == []
    for index in (built, stored):
        assert index.label.tolist() == [0, 2, 1, 2, 2, 2]
        assert index.file.tolist() == [0, 0, 1, 1, 2, 2]
        assert index.class_names == ("n0000", "n0001", "n0002")
        assert [file.records for file in index.files] == [2, 2, 2]


def test_progress_counts_the_bytes_of_all_shards(folder: ShardFolder) -> None:
    folder.open()

    assert folder.progress == [(0, 6), (2, 6), (4, 6), (6, 6)]


def test_the_index_is_stored_beside_the_data(folder: ShardFolder) -> None:
    folder.open()

    assert [path.name for path in folder.folder.iterdir() if path.name.startswith(".")] == [
        ".convoy-train.index"
    ]


@pytest.mark.usefixtures("read_only")
def test_the_index_of_a_read_only_folder_is_stored_in_the_cache(
    folder: ShardFolder, tmp_path: Path
) -> None:
    folder.open()
    (stored,) = (tmp_path / "cache" / "convoy").iterdir()
    folder.open()

    assert stored.name.endswith("-train.index")
    assert folder.scanned == folder.notices == []
    assert not list(folder.folder.glob(".*"))


@pytest.mark.usefixtures("read_only")
def test_two_data_folders_have_different_indexes_in_the_cache(folder: ShardFolder) -> None:
    other = ShardSet(folder.folder.parent / "other", "train", "tfrecord", ())

    assert index_paths(other)[1] != index_paths(folder.shards())[1]


def test_a_run_continues_if_the_index_cannot_be_saved(
    folder: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Index, path: Path) -> None:
        path.write_bytes(b"partial")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(index_file, "save", refuse)
    index = folder.open()

    assert len(index) == 6
    (notice,) = folder.notices
    assert notice.startswith("the index could not be saved")
    assert notice.count("No space left on device") == 2
    assert not list(folder.folder.parent.rglob("*.tmp-*"))


@pytest.mark.parametrize("cache_home", ["relative/cache", ""])
def test_a_relative_cache_folder_is_ignored(
    cache_home: str, folder: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache_home)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert index_paths(folder.shards())[1].parent == tmp_path / ".cache" / "convoy"


def test_a_damaged_index_is_reported_and_rebuilt(folder: ShardFolder) -> None:
    folder.open()
    path = folder.folder / ".convoy-train.index"
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    index = folder.open()

    assert len(folder.scanned) == 3
    (notice,) = folder.notices
    assert f"{path}: unusable index: checksum mismatch" in notice
    assert len(index) == 6
    assert folder.open() is not None
    assert folder.notices == []


@pytest.mark.parametrize("file_type", ["folder", "fifo", "loop"])
def test_a_special_file_in_place_of_the_index_does_not_block(
    file_type: str, folder: ShardFolder
) -> None:
    path = folder.folder / ".convoy-train.index"
    {
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "loop": lambda: path.symlink_to(path),
    }[file_type]()

    assert len(folder.open()) == 6


def test_a_shard_of_a_different_size_is_reported_with_both_sizes(folder: ShardFolder) -> None:
    folder.open()
    folder.write(1, b"\1\1\1")
    index = folder.open()

    assert index.label.tolist() == [0, 2, 1, 1, 1, 2, 2]
    assert len(folder.notices) == 1
    assert "out of date: train-00001-of-00003 has 3 bytes, had 2" in folder.notices[0]


def test_a_shard_that_lost_records_is_refused_until_its_index_is_removed(
    folder: ShardFolder,
) -> None:
    folder.open()
    folder.write(1, b"\1")
    with pytest.raises(DataError, match="1 record, but 2 when it was indexed") as caught:
        folder.open()
    Path(str(caught.value).partition("or remove ")[2].partition(" to accept")[0]).unlink()

    assert folder.open().label.tolist() == [0, 2, 1, 2, 2]


def test_a_modified_shard_is_scanned_again(folder: ShardFolder) -> None:
    folder.open()
    path = folder.write(1, b"\2\0")
    os.utime(path, ns=(1, 1))
    index = folder.open()

    assert index.label.tolist() == [0, 2, 2, 0, 2, 2]
    assert "train-00001-of-00003 was modified" in folder.notices[0]


def test_new_and_missing_shards_are_reported(folder: ShardFolder) -> None:
    folder.open()
    (folder.folder / "train-00000-of-00003").rename(folder.folder / "train-00009-of-00003")
    folder.open()

    assert "train-00000-of-00003 is missing; train-00009-of-00003 is new" in folder.notices[0]


def test_only_the_first_of_many_changes_are_listed(folder: ShardFolder) -> None:
    folder.open()
    for path in folder.shards().paths:
        path.rename(path.with_name(path.name + "x"))
    folder.open()

    assert (
        "; ".join(f"train-0000{number}-of-00003 is missing" for number in range(3))
        in (folder.notices[0])
    )
    assert ", and 3 more; indexing the shards again" in folder.notices[0]


def test_an_index_of_another_shard_format_is_not_used(folder: ShardFolder) -> None:
    folder.open()
    folder.open("webdataset")

    assert len(folder.scanned) == 3
    assert "it describes tfrecord shards" in folder.notices[0]


def test_a_shard_that_changes_while_it_is_indexed_is_refused(
    folder: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan_and_grow(path: Path) -> ShardScan:
        scan = make_scan(*path.read_bytes(), size=1)
        path.write_bytes(b"\0\0\0")
        return scan

    monkeypatch.setattr(folder, "scan", scan_and_grow)

    with pytest.raises(DataError, match="changed while it was indexed: 2 bytes before, 3 after"):
        folder.open()


def test_the_error_for_an_unreadable_shard_names_it(
    folder: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> ShardScan:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(folder, "scan", refuse)

    with pytest.raises(DataError, match="-of-00003: cannot be read: Permission denied"):
        folder.open()


def test_the_error_for_a_missing_shard_names_it(folder: ShardFolder) -> None:
    shards = folder.shards()
    shards.paths[1].unlink()

    with pytest.raises(DataError, match=r"train-00001-of-00003: .*No such file"):
        open_index(shards, folder.scan)


def test_two_builders_write_the_same_bytes(folder: ShardFolder) -> None:
    folder.open()
    path = folder.folder / ".convoy-train.index"
    first = path.read_bytes()
    path.unlink()
    folder.open()

    assert path.read_bytes() == first


def test_conflicting_class_names_are_reported() -> None:
    first, second = ShardScan(), ShardScan()
    for scan, name in ((first, "cat"), (second, "dog")):
        scan.add(0, 1, 0, small_index().boxes[:0])
        scan.names[0] = name
    files = [small_index().files[number] for number in range(2)]
    notices: list[str] = []
    index = join_scans(
        "tfrecord",
        list(zip(files, [first, second], strict=True)),
        ProgressCallbacks(notices.append),
    )

    assert index.class_names == ("cat",)
    (notice,) = notices
    assert "class 0 is named 'cat' in train-00000-of-00002 and 'dog' in train-00001" in notice


def test_only_the_first_faults_keep_their_reasons() -> None:
    scan = ShardScan()
    for number in range(MAX_FAULTS + 5):
        scan.add_bad(number, 1, "bad")
    files = small_index().files
    index = join_scans("tfrecord", [(files[0], scan), (files[1], scan)])

    assert len(scan.faults) == len(index.faults) == MAX_FAULTS
    assert (index.label == -1).sum() == 2 * MAX_FAULTS + 10


def test_a_scan_stores_boxes_checksums_and_faults_by_record() -> None:
    scan = ShardScan(with_checksums=True)
    boxes = small_index().boxes[:2]
    scan.add(0, 5, 3, boxes, crc=11)
    scan.add_bad(5, 6, "bad")
    scan.add(11, 7, 1, boxes[:1], crc=22)

    assert scan.label.tolist() == [3, -1, 1]
    assert (scan.offset.tolist(), scan.size.tolist()) == ([0, 5, 11], [5, 6, 7])
    assert scan.crc.tolist() == [11, 0, 22]
    assert scan.box_count.tolist() == [2, 0, 1]
    assert np.array_equal(scan.boxes, np.concatenate([boxes, boxes[:1]]))
    assert scan.faults == [(1, "bad")]


def test_the_number_of_threads_does_not_change_the_index(
    folder: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_builder, "_THREADS", 1)
    single_threaded = folder.open()
    (folder.folder / ".convoy-train.index").unlink()
    monkeypatch.setattr(index_builder, "_THREADS", 3)
    threaded = folder.open()

    assert np.array_equal(single_threaded.label, threaded.label)


def test_records_lost_after_a_fault_keep_their_indices_and_are_faults() -> None:
    scan = ShardScan()
    scan.add(0, 10, 0, NO_BOXES)
    scan.add(10, 10, 1, NO_BOXES)
    scan.add_bad(20, 7, "truncated")
    scan.add_missing(6)

    assert scan.label.tolist() == [0, 1, UNKNOWN_LABEL, UNKNOWN_LABEL, UNKNOWN_LABEL, UNKNOWN_LABEL]
    assert [number for number, _ in scan.faults] == [2, 3, 4, 5]
    assert scan.faults[-1][1] == "lost: truncated"
    assert scan.offset.tolist() == [0, 10, 20, 20, 20, 20]
    assert len(scan.size) == len(scan.box_count) == 6


def test_a_shard_without_losses_or_without_a_fault_is_not_padded() -> None:
    for fault, records in ((True, 0), (True, 2), (False, 5)):
        scan = ShardScan()
        scan.add(0, 10, 0, NO_BOXES)
        if fault:
            scan.add_bad(20, 7, "truncated")
        before = len(scan.label)
        scan.add_missing(records)

        assert len(scan.label) == before
