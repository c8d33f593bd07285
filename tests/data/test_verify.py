"""Verification reads everything and lists every problem with its location."""

import gzip
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from support.cifar_files import write_cifar10, write_cifar100
from support.small_photos import converted, jpeg, write_photos
from support.tar_files import sample as tar_sample
from support.tar_files import write_tar
from support.tfrecord_files import example, write_raw

from convoy.data.progress import ProgressCallbacks
from convoy.data.records import tfrecord_format
from convoy.data.records.manifest import JOURNAL_NAME, MANIFEST_NAME
from convoy.data.records.record import DataFormat
from convoy.data.records.tfrecord_format import bytes_list, int64_list
from convoy.data.verify import SplitReport, VerifyRequest, verify
from convoy.errors import ConfigError

FORMATS: tuple[DataFormat, ...] = ("folder", "tfrecord", "webdataset")


def report(folder: Path, *, decode: bool = True, workers: int = 2) -> SplitReport:
    """Verify the training split."""
    (found,) = verify(VerifyRequest(folder, "train", workers, decode), ProgressCallbacks())
    return found


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Four TFRecord shards of three records, with a manifest."""
    return converted(write_photos(tmp_path / "photos"), tmp_path / "tfrecord", "tfrecord")


def shard(folder: Path, number: int = 1) -> Path:
    return folder / f"train-{number:05}-of-00004"


def offsets(path: Path) -> list[int]:
    """The start of each frame, and the end of the last frame."""
    with path.open("rb") as file:
        found = [
            (frame.offset, frame.size)
            for frame in tfrecord_format.iter_frames(file, path.stat().st_size)
        ]
    return [*(offset for offset, _ in found), sum(found[-1])]


def remove_manifest(folder: Path) -> Path:
    """Remove the manifest, so that only the shards themselves are checked."""
    (folder / MANIFEST_NAME).unlink()
    return folder


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_valid_dataset_is_counted_and_reported_as_good(
    data_format: DataFormat, tmp_path: Path
) -> None:
    data = converted(write_photos(tmp_path / "photos"), tmp_path / "to", data_format)
    files = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    train, validation = verify(VerifyRequest(data), ProgressCallbacks())

    assert train.is_valid and validation.is_valid
    assert (train.records, validation.records) == (12, 3)
    assert train.lines()[-1].endswith("MB: all good")
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == files


def test_a_shard_truncated_inside_a_record_is_reported_with_location_and_reason(
    records: Path,
) -> None:
    path = shard(remove_manifest(records))
    starts = offsets(path)
    path.write_bytes(path.read_bytes()[: starts[1] + 100])
    (bad,) = report(records).bad

    assert (bad.file, bad.offset, bad.record) == (str(path), starts[1], 1)
    assert "truncated: the record has" in bad.reason


def test_a_shard_truncated_between_records_is_detected_by_the_manifest(records: Path) -> None:
    path = shard(records)
    starts = offsets(path)
    path.write_bytes(path.read_bytes()[: starts[2]])
    found = report(records)

    assert found.bad == []
    (problem,) = found.problems
    assert f"{path}: changed since it was written: {starts[2]} bytes" in problem
    assert f"{MANIFEST_NAME} lists {starts[3]} in 3 records" in problem


@pytest.mark.parametrize(
    ("position", "reason"),
    [(0, "checksum of its length"), (9, "checksum of its length"), (60, "checksum of its bytes")],
)
def test_a_flipped_bit_is_detected(records: Path, position: int, reason: str) -> None:
    path = shard(remove_manifest(records))
    raw = bytearray(path.read_bytes())
    start = offsets(path)[1]
    raw[start + position] ^= 0x10
    path.write_bytes(raw)
    found = report(records)

    assert [(bad.offset, bad.record) for bad in found.bad] == [(start, 1)]
    assert reason in found.bad[0].reason


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (example(encoded=None), "image/encoded has 0 values"),
        (example(label=int64_list(0)), "image/class/label is 0"),
        (example(label=int64_list(1, 2)), "image/class/label has 2 values"),
        (b"\xff\xff\xff", "not a tf.train.Example"),
    ],
    ids=["no image", "label 0", "two labels", "no message"],
)
def test_an_invalid_example_is_reported_with_its_field(
    records: Path, invalid: bytes, reason: str
) -> None:
    good = example(encoded=bytes_list(jpeg(1)))
    write_raw(shard(remove_manifest(records)), [good, invalid, good])
    (bad,) = report(records).bad

    assert (bad.file, bad.record) == (str(shard(records)), 1)
    assert reason in bad.reason


def test_a_label_beyond_the_classes_of_the_manifest_is_bad(records: Path) -> None:
    good = example(encoded=bytes_list(jpeg(1)))
    write_raw(shard(records), [good, example(encoded=bytes_list(jpeg(2)), label=int64_list(4))])
    (bad,) = report(records).bad

    assert (bad.record, bad.reason) == (
        1,
        f"label 4, but {MANIFEST_NAME} lists 3 classes, starting at 1",
    )


def test_the_other_shards_are_read_if_one_is_missing(records: Path) -> None:
    shard(records, 2).unlink()
    truncated = shard(records, 3)
    truncated.write_bytes(truncated.read_bytes()[:-1])
    found = report(records)

    assert any("1 of 4 train shards are missing" in text for text in found.problems)
    assert any(f"the folder lacks {shard(records, 2).name}" in text for text in found.problems)
    assert [(bad.file, bad.record) for bad in found.bad] == [(str(truncated), 2)]
    assert found.records == 9


def test_two_shards_with_the_same_content_are_reported(records: Path) -> None:
    shutil.copy(shard(records, 1), shard(records, 2))
    found = report(remove_manifest(records))

    assert any("contain the same" in text for text in found.problems)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_a_compressed_shard_is_reported_with_its_compression(
    records: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = shard(remove_manifest(records))
    path.write_bytes(compress(path.read_bytes()))
    found = report(records)

    assert [f"compressed with {compress.__module__}" in text for text in found.problems] == [True]
    assert found.records == 9


def test_an_empty_record_and_an_empty_shard_are_bad(records: Path) -> None:
    remove_manifest(records)
    length = struct.pack("<Q", 0)
    empty = length + struct.pack("<I", tfrecord_format.masked_crc(length))
    empty += struct.pack("<I", tfrecord_format.masked_crc(b""))
    shard(records, 1).write_bytes(empty + shard(records, 1).read_bytes())
    shard(records, 2).write_bytes(b"")
    found = report(records)

    assert [(bad.file, bad.record, bad.reason) for bad in found.bad] == [
        (str(shard(records, 1)), 0, "the record is empty (0 bytes)"),
        (str(shard(records, 2)), 0, "the shard is empty (0 bytes)"),
    ]


@pytest.mark.parametrize("data_format", FORMATS)
def test_truncated_photos_are_detected_in_every_format(
    data_format: DataFormat, tmp_path: Path
) -> None:
    source = write_photos(tmp_path / "photos", {"a": 6, "b": 2})
    truncated = sorted((source / "train" / "a").iterdir())[1:6]
    for path, fraction in zip(truncated, (0.01, 0.1, 0.5, 0.9, 0.999), strict=True):
        content = path.read_bytes()
        path.write_bytes(content[: int(fraction * len(content))])
    without_header = 2  # at 1 and 10 % the header is truncated too, which a conversion refuses
    folder = source
    if data_format != "folder":
        for path in truncated[:without_header]:
            path.write_bytes(truncated[-1].read_bytes())
        folder = converted(source, tmp_path / "to", data_format, shard_records=4)
    found = report(folder)

    assert len(found.bad) == 5
    assert all(bad.reason for bad in found.bad)
    if data_format == "folder":
        assert [bad.file for bad in found.bad] == list(map(str, truncated))
        assert len(report(folder, decode=False).bad) == without_header
    else:
        assert [bad.record for bad in found.bad] == [1, 2, 3, 0, 1]
        assert report(folder, decode=False).is_valid


def test_a_truncated_tar_and_a_sample_without_a_label_are_both_reported(
    tmp_path: Path,
) -> None:
    data = converted(
        write_photos(tmp_path / "photos"), tmp_path / "to", "webdataset", shard_records=6
    )
    remove_manifest(data)
    write_tar(data / "train-000000.tar", *tar_sample("0", 1, jpeg(1)), ("1.jpg", jpeg(2)))
    truncated = data / "train-000001.tar"
    truncated.write_bytes(truncated.read_bytes()[:3000])
    found = report(data)

    assert {bad.file for bad in found.bad} == {str(data / "train-000000.tar"), str(truncated)}
    assert "has no .cls" in found.bad[0].reason


def test_missing_tar_samples_are_detected_by_the_metadata(tmp_path: Path) -> None:
    data = converted(write_photos(tmp_path / "photos"), tmp_path / "to", "webdataset")
    remove_manifest(data)
    (data / "train-000003.tar").unlink()
    found = report(data)

    assert [f"train_length {12}" in text for text in found.problems] == [True]


def test_a_changed_class_folder_is_detected_by_the_manifest(tmp_path: Path) -> None:
    data = converted(write_photos(tmp_path / "photos"), tmp_path / "to", "folder")
    changed = next((data / "train" / "n02").iterdir())
    changed.write_bytes(jpeg(99))
    found = report(data)

    assert found.bad == []
    assert [text.partition(":")[0] for text in found.problems] == [str(data / "train" / "n02")]


def test_class_folders_that_differ_between_splits_are_reported(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos")
    (data / "validation" / "n04").mkdir()
    found = report(data)

    assert [f"only in validation: {'n04'}" in text for text in found.problems] == [True]


def test_an_unfinished_conversion_is_reported(records: Path) -> None:
    (records / MANIFEST_NAME).rename(records / JOURNAL_NAME)

    assert "has not finished here" in report(records).problems[0]


def test_an_invalid_manifest_is_reported_and_the_records_are_read(records: Path) -> None:
    (records / MANIFEST_NAME).write_text("{}")
    found = report(records)

    assert ["not a manifest" in text for text in found.problems] == [True]
    assert found.records == 12


def test_the_number_of_threads_does_not_change_the_report(records: Path) -> None:
    for number in range(3):
        path = shard(records, number)
        path.write_bytes(path.read_bytes()[:-1])

    assert asdict(report(records, workers=1)) == asdict(report(records, workers=4))


def test_a_report_can_be_written_as_json(records: Path) -> None:
    path = shard(remove_manifest(records))
    path.write_bytes(path.read_bytes()[:-1])
    table = json.loads(json.dumps(asdict(report(records))))

    assert table["form"] == "tfrecord"
    assert table["bad"][0]["file"] == str(path)
    assert table["bad"][0].keys() == {"split", "file", "offset", "record", "reason"}


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no images here"):
        list(verify(VerifyRequest(tmp_path), ProgressCallbacks()))


@pytest.mark.parametrize("write", [write_cifar10, write_cifar100])
def test_cifar_is_verified_by_its_reader(write: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert all(split.is_valid for split in verify(VerifyRequest(tmp_path), ProgressCallbacks()))
    truncated = next(folder.glob("test*.bin"))
    truncated.write_bytes(truncated.read_bytes()[:-1])
    train, validation = verify(VerifyRequest(tmp_path), ProgressCallbacks())

    assert train.is_valid and train.records in (20, 100)
    assert [str(truncated) in text for text in validation.problems] == [True]
