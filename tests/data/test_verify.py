"""Everything is read, every fault is listed with its place, and none hides another."""

import gzip
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cifar_files import write_cifar10, write_cifar100
from small_photos import converted, jpeg, write_photos
from tars import sample as tar_sample
from tars import write_tar
from tfrecord_files import example, write_raw

from convoy.data.progress import ProgressCallbacks
from convoy.data.records import tfrecord_format as frames
from convoy.data.records.manifest import JOURNAL, NAME
from convoy.data.records.record import Form
from convoy.data.records.tfrecord_format import byte_strings, integers
from convoy.data.verify import Scope, SplitReport, verify
from convoy.errors import ConfigError

FORMS: tuple[Form, ...] = ("folder", "tfrecord", "webdataset")


def report(folder: Path, *, decoded: bool = True, workers: int = 2) -> SplitReport:
    """Of the training split."""
    (found,) = verify(Scope(folder, "train", workers, decoded), ProgressCallbacks())
    return found


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Four TFRecord shards of three records, with a manifest."""
    return converted(write_photos(tmp_path / "photos"), tmp_path / "tfrecord", "tfrecord")


def shard(folder: Path, number: int = 1) -> Path:
    return folder / f"train-{number:05}-of-00004"


def offsets(path: Path) -> list[int]:
    """Where the frames begin, and where the last one ends."""
    with path.open("rb") as file:
        found = [(one.offset, one.size) for one in frames.walk(file, path.stat().st_size)]
    return [*(offset for offset, _ in found), sum(found[-1])]


def alone(folder: Path) -> Path:
    """Without the manifest, so that only the files themselves can tell."""
    (folder / NAME).unlink()
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_what_is_good_is_counted_and_called_good(form: Form, tmp_path: Path) -> None:
    data = converted(write_photos(tmp_path / "photos"), tmp_path / "to", form)
    files = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    train, validation = verify(Scope(data), ProgressCallbacks())

    assert train.is_good and validation.is_good
    assert (train.records, validation.records) == (12, 3)
    assert train.lines()[-1].endswith("MB: all good")
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == files


def test_a_shard_cut_in_a_record_is_told_with_place_and_reason(records: Path) -> None:
    path = shard(alone(records))
    starts = offsets(path)
    path.write_bytes(path.read_bytes()[: starts[1] + 100])
    (bad,) = report(records).bad

    assert (bad.file, bad.offset, bad.record) == (str(path), starts[1], 1)
    assert "cut in the middle: the record takes" in bad.reason


def test_a_shard_cut_between_two_records_is_found_by_the_manifest(records: Path) -> None:
    path = shard(records)
    starts = offsets(path)
    path.write_bytes(path.read_bytes()[: starts[2]])
    found = report(records)

    assert found.bad == []
    assert found.problems == [
        f"{path}: not as it was written: {starts[2]} bytes, {NAME} lists {starts[3]} in 3 records "
        "with another sha256"
    ]


@pytest.mark.parametrize(
    ("place", "reason"),
    [(0, "checksum of its length"), (9, "checksum of its length"), (60, "checksum of its bytes")],
)
def test_a_flipped_bit_is_found_wherever_it_is(records: Path, place: int, reason: str) -> None:
    path = shard(alone(records))
    raw = bytearray(path.read_bytes())
    start = offsets(path)[1]
    raw[start + place] ^= 0x10
    path.write_bytes(raw)
    found = report(records)

    assert [(bad.offset, bad.record) for bad in found.bad] == [(start, 1)]
    assert reason in found.bad[0].reason


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (example(encoded=None), "image/encoded has 0 values"),
        (example(label=integers(0)), "image/class/label is 0"),
        (example(label=integers(1, 2)), "image/class/label has 2 values"),
        (b"\xff\xff\xff", "not a tf.train.Example"),
    ],
    ids=["no image", "label 0", "two labels", "no message"],
)
def test_a_broken_example_is_told_with_its_field(records: Path, broken: bytes, reason: str) -> None:
    good = example(encoded=byte_strings(jpeg(1)))
    write_raw(shard(alone(records)), [good, broken, good])
    (bad,) = report(records).bad

    assert (bad.file, bad.record) == (str(shard(records)), 1)
    assert reason in bad.reason


def test_a_label_beyond_the_classes_of_the_manifest_is_bad(records: Path) -> None:
    good = example(encoded=byte_strings(jpeg(1)))
    write_raw(shard(records), [good, example(encoded=byte_strings(jpeg(2)), label=integers(4))])
    (bad,) = report(records).bad

    assert (bad.record, bad.reason) == (1, f"label 4, but {NAME} names 3 classes, from 1 on")


def test_a_missing_shard_does_not_keep_the_others_from_being_read(records: Path) -> None:
    shard(records, 2).unlink()
    other = shard(records, 3)
    other.write_bytes(other.read_bytes()[:-1])
    found = report(records)

    assert any("1 of 4 train shards are missing" in text for text in found.problems)
    assert any(f"the folder lacks {shard(records, 2).name}" in text for text in found.problems)
    assert [(bad.file, bad.record) for bad in found.bad] == [(str(other), 2)]
    assert found.records == 9


def test_two_shards_with_the_same_content_are_told(records: Path) -> None:
    shutil.copy(shard(records, 1), shard(records, 2))
    found = report(alone(records))

    assert any("hold the same" in text for text in found.problems)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_a_compressed_shard_is_told_by_its_packer(
    records: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = shard(alone(records))
    path.write_bytes(pack(path.read_bytes()))
    found = report(records)

    assert [f"compressed with {pack.__module__}" in text for text in found.problems] == [True]
    assert found.records == 9


def test_an_empty_record_and_an_empty_shard_are_bad(records: Path) -> None:
    alone(records)
    length = struct.pack("<Q", 0)
    empty = length + struct.pack("<I", frames.masked_crc(length))
    empty += struct.pack("<I", frames.masked_crc(b""))
    shard(records, 1).write_bytes(empty + shard(records, 1).read_bytes())
    shard(records, 2).write_bytes(b"")
    found = report(records)

    assert [(bad.file, bad.record, bad.reason) for bad in found.bad] == [
        (str(shard(records, 1)), 0, "it is empty: a record of 0 bytes"),
        (str(shard(records, 2)), 0, "the shard is empty: a file of 0 bytes"),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_cut_photos_are_found_in_every_form(form: Form, tmp_path: Path) -> None:
    source = write_photos(tmp_path / "photos", {"a": 6, "b": 2})
    cut = sorted((source / "train" / "a").iterdir())[1:6]
    for path, share in zip(cut, (0.01, 0.1, 0.5, 0.9, 0.999), strict=True):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
    headless = 2  # at 1 and 10 % not even the header is there, and no conversion takes them
    folder = source
    if form != "folder":
        for path in cut[:headless]:
            path.write_bytes(cut[-1].read_bytes())
        folder = converted(source, tmp_path / "to", form, shard_records=4)
    found = report(folder)

    assert len(found.bad) == 5
    assert all(bad.reason for bad in found.bad)
    if form == "folder":
        assert [bad.file for bad in found.bad] == list(map(str, cut))
        assert len(report(folder, decoded=False).bad) == headless
    else:
        assert [bad.record for bad in found.bad] == [1, 2, 3, 0, 1]
        assert report(folder, decoded=False).is_good


def test_a_tar_without_its_end_and_a_sample_without_its_label_are_both_told(
    tmp_path: Path,
) -> None:
    data = converted(
        write_photos(tmp_path / "photos"), tmp_path / "to", "webdataset", shard_records=6
    )
    alone(data)
    write_tar(data / "train-000000.tar", *tar_sample("0", 1, jpeg(1)), ("1.jpg", jpeg(2)))
    other = data / "train-000001.tar"
    other.write_bytes(other.read_bytes()[:3000])
    found = report(data)

    assert {bad.file for bad in found.bad} == {str(data / "train-000000.tar"), str(other)}
    assert "has no .cls" in found.bad[0].reason


def test_tar_shards_that_lack_samples_are_found_by_their_metadata(tmp_path: Path) -> None:
    data = converted(write_photos(tmp_path / "photos"), tmp_path / "to", "webdataset")
    alone(data)
    (data / "train-000003.tar").unlink()
    found = report(data)

    assert [f"train_length {12}" in text for text in found.problems] == [True]


def test_a_changed_class_folder_is_found_by_the_manifest(tmp_path: Path) -> None:
    data = converted(write_photos(tmp_path / "photos"), tmp_path / "to", "folder")
    changed = next((data / "train" / "n02").iterdir())
    changed.write_bytes(jpeg(99))
    found = report(data)

    assert found.bad == []
    assert [text.partition(":")[0] for text in found.problems] == [str(data / "train" / "n02")]


def test_class_folders_that_differ_between_splits_are_told(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos")
    (data / "validation" / "n04").mkdir()
    found = report(data)

    assert [f"only in validation: {'n04'}" in text for text in found.problems] == [True]


def test_an_unfinished_conversion_is_told(records: Path) -> None:
    (records / NAME).rename(records / JOURNAL)

    assert "has not finished here" in report(records).problems[0]


def test_a_manifest_that_is_none_is_told_and_the_rest_is_read(records: Path) -> None:
    (records / NAME).write_text("{}")
    found = report(records)

    assert ["not a manifest" in text for text in found.problems] == [True]
    assert found.records == 12


def test_the_number_of_threads_changes_nothing(records: Path) -> None:
    for number in range(3):
        path = shard(records, number)
        path.write_bytes(path.read_bytes()[:-1])

    assert report(records, workers=1).as_json() == report(records, workers=4).as_json()


def test_a_report_is_one_table_for_other_programs(records: Path) -> None:
    path = shard(alone(records))
    path.write_bytes(path.read_bytes()[:-1])
    table = json.loads(json.dumps(report(records).as_json()))

    assert table["form"] == "tfrecord"
    assert table["bad"][0]["file"] == str(path)
    assert table["bad"][0].keys() == {"split", "file", "offset", "record", "reason"}


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no images there"):
        list(verify(Scope(tmp_path), ProgressCallbacks()))


@pytest.mark.parametrize("write", [write_cifar10, write_cifar100])
def test_cifar_is_judged_by_its_own_reader(write: Callable[[Path], Path], tmp_path: Path) -> None:
    home = write(tmp_path)
    assert all(one.is_good for one in verify(Scope(tmp_path), ProgressCallbacks()))
    cut = next(home.glob("test*.bin"))
    cut.write_bytes(cut.read_bytes()[:-1])
    train, validation = verify(Scope(tmp_path), ProgressCallbacks())

    assert train.is_good and train.records in (20, 100)
    assert [str(cut) in text for text in validation.problems] == [True]
