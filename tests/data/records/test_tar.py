"""Tar shards of a split: reading by index, and damaged files."""

import errno
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import webdataset
from support.tar_files import sample, tar_bytes, write_samples, write_tar

from convoy.data.progress import SILENT, ProgressCallbacks
from convoy.data.records.folder import open_folder
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.record import UNKNOWN_LABEL, EncodedImage, Records, Sample
from convoy.data.records.tar import TarShards, open_tar_shards, write_shard
from convoy.data.source import Split
from convoy.errors import DataError


def open_split(folder: Path, split: Split = "train") -> TarShards:
    return open_tar_shards(folder, split, SILENT)


def write_metadata(folder: Path, **values: object) -> Path:
    (folder / "metadata.json").write_text(json.dumps(values))
    return folder


def write_two_shards(folder: Path) -> Path:
    write_samples(folder / "train-000000.tar", 0, 1, 2)
    write_samples(folder / "train-000001.tar", 3, 0)
    return folder


def error_message(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_split(folder)
    return str(caught.value)


def test_records_are_sorted_by_shard_and_position(tmp_path: Path) -> None:
    records: Records = open_split(write_two_shards(tmp_path))

    assert [bytes(records.read(number).encoded).decode() for number in range(5)] == [
        *("train-000000.tar 0", "train-000000.tar 1", "train-000000.tar 2"),
        *("train-000001.tar 0", "train-000001.tar 1"),
    ]
    assert records.labels.tolist() == [0, 1, 2, 3, 0]
    assert records.labels.dtype == np.int64
    assert records.class_names == ("class 0", "class 1", "class 2", "class 3")


def test_a_location_points_to_the_image(tmp_path: Path) -> None:
    records = open_split(write_two_shards(tmp_path))
    location = records.location(4)
    data = Path(location.file).read_bytes()

    assert (location.file, location.number) == (f"{tmp_path}/train-000001.tar", 1)
    assert location.offset is not None
    assert data[location.offset :].startswith(b"train-000001.tar 1")


def test_records_are_read_the_same_in_another_process(tmp_path: Path) -> None:
    records = open_split(write_two_shards(tmp_path))
    copy = pickle.loads(pickle.dumps(records))

    assert [copy.read(number).encoded for number in range(5)] == [
        records.read(number).encoded for number in range(5)
    ]


def test_boxes_are_available_without_reading_the_image(tmp_path: Path) -> None:
    box = ("1.json", b'{"bbox": [[0, 0, 1, 0.5], [0, 0, 0.5, 1]]}')
    write_tar(tmp_path / "train-000000.tar", *sample("0", 0), *sample("1", 1), box)
    records = open_split(tmp_path)

    assert records.boxes(0).shape == (0, 4)
    assert records.read(1).boxes.tolist() == [[0, 0, 1, 0.5], [0, 0, 0.5, 1]]


def test_class_names_and_applied_transforms_come_from_the_metadata(tmp_path: Path) -> None:
    write_metadata(
        write_two_shards(tmp_path),
        class_names=["cat", "cow", "dog", "fox", "owl"],
        train_transform_pipeline=["Resize(256)"],
        validation_transform_pipeline=["CenterCrop(224)"],
    )
    records = open_split(tmp_path)

    assert records.class_names == ("cat", "cow", "dog", "fox", "owl")
    assert records.applied_transforms == ("Resize(256)",)


def test_a_label_beyond_the_listed_classes_is_a_bad_record(tmp_path: Path) -> None:
    records = open_split(
        write_metadata(write_two_shards(tmp_path), class_names=["cat", "cow", "dog"])
    )

    assert records.labels.tolist() == [0, 1, 2, UNKNOWN_LABEL, 0]
    with pytest.raises(BadRecordError, match=r"label 3, but metadata\.json lists 3 classes"):
        records.read(3)


def test_a_bad_sample_keeps_its_index_and_has_a_reason(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-000000.tar", *sample("0", 0), *sample("1", "x"), *sample("2", 1))
    records = open_split(tmp_path)

    assert records.labels.tolist() == [0, UNKNOWN_LABEL, 1]
    assert len(records.faults) == 1
    with pytest.raises(BadRecordError) as caught:
        records.read(1)
    assert caught.value.location == records.location(1)
    assert "sample '1' has the label 'x'" in caught.value.reason


def test_an_image_damaged_after_indexing_is_detected(tmp_path: Path) -> None:
    """Size and modification time are unchanged, so that only the checksum detects the damage."""
    records = open_split(write_two_shards(tmp_path))
    path, location = tmp_path / "train-000001.tar", records.location(3)
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[location.offset or 0] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(BadRecordError, match="checksum mismatch") as caught:
        records.read(3)
    assert caught.value.location == location
    assert isinstance(records.read(4), EncodedImage)


@pytest.mark.parametrize("change", ["truncated", "touched", "removed"])
def test_a_shard_that_changes_during_the_run_ends_it(change: str, tmp_path: Path) -> None:
    records = open_split(write_two_shards(tmp_path))
    path = tmp_path / "train-000001.tar"
    reasons = {
        "truncated": f"changed during the run: {path.stat().st_size} bytes at first, 512 now;",
        "touched": "changed during the run: modification time "
        f"{path.stat().st_mtime_ns} ns at first, 77 ns now;",
        "removed": "cannot be read: No such file or directory",
    }
    if change == "truncated":
        os.truncate(path, 512)
    elif change == "touched":
        os.utime(path, ns=(0, 77))
    else:
        path.unlink()

    with pytest.raises(DataError) as caught:
        records.read(4)
    assert not isinstance(caught.value, BadRecordError)
    assert f"{path}: {reasons[change]}" in str(caught.value)
    assert isinstance(records.read(0), EncodedImage)


@pytest.mark.parametrize(("code", "is_bad_record"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_only_a_disk_read_error_is_a_bad_record(
    code: int, is_bad_record: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    records = open_split(write_two_shards(tmp_path))
    monkeypatch.setattr(os, "pread", fail)

    with pytest.raises(DataError, match=f"cannot be read: {os.strerror(code)}") as caught:
        records.read(0)
    assert isinstance(caught.value, BadRecordError) == is_bad_record


def test_a_length_that_matches_the_metadata_is_accepted(tmp_path: Path) -> None:
    assert len(open_split(write_metadata(write_two_shards(tmp_path), train_length=5))) == 5


def test_a_shard_that_lost_samples_is_detected_by_the_length(tmp_path: Path) -> None:
    """The shard is a valid file without its last sample."""
    write_metadata(write_two_shards(tmp_path), train_length=5, validation_length=9)
    write_samples(tmp_path / "train-000001.tar", 3)

    assert "4 samples in the train shards, but metadata.json has train_length 5" in error_message(
        tmp_path
    )


def test_a_truncated_shard_is_left_to_the_bad_record_policy(tmp_path: Path) -> None:
    write_metadata(write_two_shards(tmp_path), train_length=5)
    os.truncate(tmp_path / "train-000000.tar", 512 * 6 + 100)
    records = open_split(tmp_path)

    assert records.labels.tolist() == [0, UNKNOWN_LABEL, 3, 0]
    with pytest.raises(
        BadRecordError, match=r"record 1: truncated inside .*: only 100 bytes remain"
    ):
        records.read(1)


def test_two_shards_with_the_same_images_are_refused(tmp_path: Path) -> None:
    write_two_shards(tmp_path)
    data = (tmp_path / "train-000000.tar").read_bytes()
    (tmp_path / "train-000002.tar").write_bytes(data + bytes(10_240))  # not the same bytes

    assert "train-000000.tar and train-000002.tar contain the same 3 images" in error_message(
        tmp_path
    )


def test_empty_shards_are_not_duplicates(tmp_path: Path) -> None:
    write_two_shards(tmp_path)
    for number in (2, 3):
        (tmp_path / f"train-{number:06}.tar").write_bytes(tar_bytes())

    assert len(open_split(tmp_path)) == 5


def test_each_shard_of_0_bytes_is_a_bad_record(tmp_path: Path) -> None:
    write_two_shards(tmp_path)
    for number in (2, 3):
        (tmp_path / f"train-{number:06}.tar").touch()

    assert open_split(tmp_path).labels.tolist() == [0, 1, 2, 3, 0, UNKNOWN_LABEL, UNKNOWN_LABEL]


def test_opening_again_reads_only_the_index(tmp_path: Path) -> None:
    open_split(write_two_shards(tmp_path))
    calls: list[object] = []
    records = open_tar_shards(
        tmp_path, "train", ProgressCallbacks(calls.append, lambda *bytes: calls.append(bytes))
    )

    assert calls == []
    assert records.read(4).encoded == b"train-000001.tar 1"


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # by webdataset
def test_shards_written_by_webdataset_are_read(tmp_path: Path) -> None:
    images = [bytes([number]) * (number * 300 + 1) for number in range(20)]
    pattern = str(tmp_path / "train-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=8, verbose=0) as writer:
        for number, image in enumerate(images):
            box = [0, 0, 0.5, 1] if number % 2 else None
            writer.write(
                {"__key__": f"x/{number}", "jpg": image, "cls": number % 3, "json": {"bbox": box}}
            )
    records = open_split(tmp_path)

    assert [records.read(number).encoded for number in range(20)] == images
    assert records.labels.tolist() == [number % 3 for number in range(20)]
    assert [len(records.boxes(number)) for number in range(20)] == [0, 1] * 10
    assert records.faults == ()


def test_real_photos_are_the_same_in_shards_and_folders(photos: Path, tmp_path: Path) -> None:
    folder = open_folder(photos, "train")
    samples = [
        Sample(
            bytes(folder.read(number).encoded),
            int(folder.labels[number]),
            *("", "", 0, 0),
            boxes=folder.boxes(number),
        )
        for number in range(len(folder))
    ]
    for shard, first in enumerate(range(0, len(samples), 64)):
        write_shard(tmp_path / f"train-{shard:06}.tar", samples[first : first + 64], first)
    write_metadata(tmp_path, train_length=len(samples), class_names=list(folder.class_names))
    records = open_split(tmp_path)

    assert len(records) == len(folder)
    assert records.class_names == folder.class_names
    assert np.array_equal(records.labels, folder.labels)
    for number in range(len(folder)):
        assert records.read(number).encoded == folder.read(number).encoded
        assert np.array_equal(records.boxes(number), folder.boxes(number))
