"""Where an index is kept, when it is believed, and what is said when it is made anew."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from index_desk import Desk
from index_samples import scan_of, small_index

from convoy.data.records import index as index_file
from convoy.data.records import indexing
from convoy.data.records.index import MOST_FAULTS, Index
from convoy.data.records.indexing import ShardScan, index_paths, join, open_index
from convoy.data.records.record import NO_BOXES, UNKNOWN
from convoy.data.records.shards import ShardSet
from convoy.errors import DataError


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    desk = Desk(tmp_path / "data")
    for number in range(3):
        desk.write(number, bytes([number, 2]))
    return desk


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> Iterator[None]:
    """A data folder that takes no file, whoever asks."""
    save = index_file.save

    def refusing(index: Index, path: Path) -> None:
        if path.parent == desk.folder:
            raise PermissionError(13, "Permission denied", str(path))
        save(index, path)

    monkeypatch.setattr(index_file, "save", refusing)
    yield


def test_shards_are_read_once_and_joined_in_their_order(desk: Desk) -> None:
    built = desk.open()
    first = [*desk.scanned]
    stored = desk.open()

    assert sorted(first) == [path.name for path in desk.shards().paths]
    assert desk.scanned == desk.notices == []
    for index in (built, stored):
        assert index.label.tolist() == [0, 2, 1, 2, 2, 2]
        assert index.file.tolist() == [0, 0, 1, 1, 2, 2]
        assert index.class_names == ("n0000", "n0001", "n0002")
        assert [file.records for file in index.files] == [2, 2, 2]


def test_progress_counts_the_bytes_of_all_shards(desk: Desk) -> None:
    desk.open()

    assert desk.progress == [(0, 6), (2, 6), (4, 6), (6, 6)]


def test_the_index_lies_beside_the_data(desk: Desk) -> None:
    desk.open()

    assert [path.name for path in desk.folder.iterdir() if path.name.startswith(".")] == [
        ".convoy-train.index"
    ]


@pytest.mark.usefixtures("read_only")
def test_data_that_cannot_be_written_has_its_index_in_the_cache(desk: Desk, tmp_path: Path) -> None:
    desk.open()
    (kept,) = (tmp_path / "cache" / "convoy").iterdir()
    desk.open()

    assert kept.name.endswith("-train.index")
    assert desk.scanned == desk.notices == []
    assert not list(desk.folder.glob(".*"))


@pytest.mark.usefixtures("read_only")
def test_two_data_folders_share_no_index_in_the_cache(desk: Desk) -> None:
    elsewhere = ShardSet(desk.folder.parent / "other", "train", "tfrecord", ())

    assert index_paths(elsewhere)[1] != index_paths(desk.shards())[1]


def test_without_any_place_the_run_goes_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(_: Index, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(index_file, "save", refusing)
    index = desk.open()

    assert len(index) == 6
    (notice,) = desk.notices
    assert notice.startswith("the index is not kept, the next run builds it again: ")
    assert notice.count("No space left on device") == 2
    assert not list(desk.folder.parent.rglob("*.tmp-*"))


@pytest.mark.parametrize("home", ["relative/cache", ""])
def test_a_cache_folder_that_is_relative_is_not_used(
    home: str, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert index_paths(desk.shards())[1].parent == tmp_path / ".cache" / "convoy"


def test_damage_is_told_and_mended(desk: Desk) -> None:
    desk.open()
    path = desk.folder / ".convoy-train.index"
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    index = desk.open()

    assert len(desk.scanned) == 3
    assert desk.notices == [
        f"{path}: not a usable index: its checksum is wrong; the shards are indexed anew"
    ]
    assert len(index) == 6
    assert desk.open() is not None
    assert desk.notices == []


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop"])
def test_what_is_no_file_in_the_place_of_an_index_never_hangs(kind: str, desk: Desk) -> None:
    place = desk.folder / ".convoy-train.index"
    {
        "folder": place.mkdir,
        "fifo": lambda: os.mkfifo(place),
        "loop": lambda: place.symlink_to(place),
    }[kind]()

    assert len(desk.open()) == 6


def test_a_shard_of_another_size_is_told_with_both_sizes(desk: Desk) -> None:
    desk.open()
    desk.write(1, b"\1\1\1")
    index = desk.open()

    assert index.label.tolist() == [0, 2, 1, 1, 1, 2, 2]
    assert len(desk.notices) == 1
    assert "out of date: train-00001-of-00003 has 3 bytes, had 2; the" in desk.notices[0]


def test_a_shard_with_fewer_records_than_it_had_is_refused_until_its_index_goes(
    desk: Desk,
) -> None:
    desk.open()
    desk.write(1, b"\1")
    with pytest.raises(DataError, match="1 records, it had 2 when it was indexed") as refused:
        desk.open()
    Path(str(refused.value).partition("or remove ")[2].partition(" to take")[0]).unlink()

    assert desk.open().label.tolist() == [0, 2, 1, 2, 2]


def test_a_shard_written_since_is_read_again(desk: Desk) -> None:
    desk.open()
    path = desk.write(1, b"\2\0")
    os.utime(path, ns=(1, 1))
    index = desk.open()

    assert index.label.tolist() == [0, 2, 2, 0, 2, 2]
    assert "train-00001-of-00003 was written since" in desk.notices[0]


def test_shards_that_came_and_went_are_told(desk: Desk) -> None:
    desk.open()
    (desk.folder / "train-00000-of-00003").rename(desk.folder / "train-00009-of-00003")
    desk.open()

    assert "train-00000-of-00003 is gone; train-00009-of-00003 is new" in desk.notices[0]


def test_of_many_changes_only_some_are_told(desk: Desk) -> None:
    desk.open()
    for path in desk.shards().paths:
        path.rename(path.with_name(path.name + "x"))
    desk.open()

    assert (
        "; ".join(f"train-0000{number}-of-00003 is gone" for number in range(3))
        in (desk.notices[0])
    )
    assert ", and 3 more; the shards are indexed anew" in desk.notices[0]


def test_an_index_of_another_kind_is_not_used(desk: Desk) -> None:
    desk.open()
    desk.open("webdataset")

    assert len(desk.scanned) == 3
    assert "it is of tfrecord shards" in desk.notices[0]


def test_a_shard_that_changes_while_it_is_read_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing(path: Path) -> ShardScan:
        found = scan_of(*path.read_bytes(), size=1)
        path.write_bytes(b"\0\0\0")
        return found

    monkeypatch.setattr(desk, "scan", growing)

    with pytest.raises(DataError, match="changed while it was indexed: 2 bytes before, 3 after"):
        desk.open()


def test_a_shard_that_cannot_be_read_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> ShardScan:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(desk, "scan", refused)

    with pytest.raises(DataError, match="-of-00003: cannot be read: Permission denied"):
        desk.open()


def test_a_shard_that_is_gone_is_named(desk: Desk) -> None:
    shards = desk.shards()
    shards.paths[1].unlink()

    with pytest.raises(DataError, match="train-00001-of-00003: No such file"):
        open_index(shards, desk.scan, print, lambda _, __: None)


def test_two_builders_write_the_same_bytes(desk: Desk) -> None:
    desk.open()
    path = desk.folder / ".convoy-train.index"
    first = path.read_bytes()
    path.unlink()
    desk.open()

    assert path.read_bytes() == first


def test_names_that_do_not_agree_are_told() -> None:
    one, two = ShardScan(), ShardScan()
    for scan, name in ((one, "cat"), (two, "dog")):
        scan.add(0, 1, 0, small_index().boxes[:0])
        scan.names[0] = name
    files = [small_index().files[number] for number in range(2)]
    notices: list[str] = []
    index = join("tfrecord", list(zip(files, [one, two], strict=True)), notices.append)

    assert index.class_names == ("cat",)
    assert notices == [
        "class 0 is called 'cat' in train-00000-of-00002 and 'dog' in train-00001-of-00002; "
        "the first is used"
    ]


def test_of_faults_without_end_only_the_first_keep_their_reasons() -> None:
    scan = ShardScan()
    for number in range(MOST_FAULTS + 5):
        scan.add_bad(number, 1, "bad")
    files = small_index().files
    index = join("tfrecord", [(files[0], scan), (files[1], scan)], print)

    assert len(scan.faults) == len(index.faults) == MOST_FAULTS
    assert (index.label == -1).sum() == 2 * MOST_FAULTS + 10


def test_a_scan_keeps_boxes_checksums_and_faults_in_their_index_paths() -> None:
    scan = ShardScan(has_crc=True)
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


def test_many_shards_are_read_together(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_THREADS", 1)
    alone = desk.open()
    (desk.folder / ".convoy-train.index").unlink()
    monkeypatch.setattr(indexing, "_THREADS", 3)
    together = desk.open()

    assert np.array_equal(alone.label, together.label)


def test_records_lost_behind_a_fault_keep_their_numbers_and_are_faults_each() -> None:
    scan = ShardScan()
    scan.add(0, 10, 0, NO_BOXES)
    scan.add(10, 10, 1, NO_BOXES)
    scan.add_bad(20, 7, "cut in the middle")
    scan.add_lost(6)

    assert scan.label.tolist() == [0, 1, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]
    assert [number for number, _ in scan.faults] == [2, 3, 4, 5]
    assert scan.faults[-1][1] == "lost: cut in the middle"
    assert scan.offset.tolist() == [0, 10, 20, 20, 20, 20]
    assert len(scan.size) == len(scan.box_count) == 6


def test_a_shard_that_lost_nothing_or_has_no_fault_stays_as_it_is() -> None:
    for fault, records in ((True, 0), (True, 2), (False, 5)):
        scan = ShardScan()
        scan.add(0, 10, 0, NO_BOXES)
        if fault:
            scan.add_bad(20, 7, "torn")
        before = len(scan.label)
        scan.add_lost(records)

        assert len(scan.label) == before
