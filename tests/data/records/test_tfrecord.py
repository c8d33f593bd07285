"""TFRecord sets from end to end: written, found, indexed, read; and every kind of damage."""

import gzip
import io
import json
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tfrecord_files import BOXES, example, opened, sample, write_raw, write_set

from convoy.data.records import tfrecord_format as frames
from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import UNKNOWN, EncodedImage, Records, Sample
from convoy.data.records.tfrecord import TfRecords, scan_shard, write_shard
from convoy.data.records.tfrecord_format import integers
from convoy.errors import DataError, ExitCode


def bad(records: TfRecords, number: int) -> BadRecordError:
    with pytest.raises(BadRecordError) as caught:
        records.read(number)
    return caught.value


def good(records: TfRecords) -> list[int]:
    """The numbers of all records that can be read, each checked against what was written."""
    found = []
    for number in range(len(records)):
        try:
            record = records.read(number)
        except BadRecordError:
            continue
        assert bytes(record.encoded) == sample(number).encoded
        found.append(number)
    return found


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_set(tmp_path, shards=3, records=5)
    records: Records = opened(tmp_path)
    read: list[EncodedImage] = [records.read(number) for number in range(len(records))]
    written = [sample(number) for number in range(15)]

    assert [bytes(one.encoded) for one in read] == [one.encoded for one in written]
    assert records.labels.tolist() == [one.label for one in written]
    assert records.labels.dtype == np.int64
    assert records.class_names == tuple(f"n{label:08}" for label in range(4))
    for one, other in zip(read, written, strict=True):
        assert np.array_equal(one.boxes, other.boxes)


def test_a_record_knows_its_file_byte_and_number(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2, records=3)
    records = opened(tmp_path)
    second = frames.FRAMING_BYTES + int.from_bytes(paths[1].read_bytes()[:8], "little")

    assert records.location(0) == RecordLocation(str(paths[0]), 0, 0)
    assert records.location(4) == RecordLocation(str(paths[1]), second, 1)


def test_a_record_tells_its_file_and_its_class_in_words(tmp_path: Path) -> None:
    write_set(tmp_path, shards=2, records=3)
    records = opened(tmp_path)

    assert records.words(4) == ("n00000000_4.JPEG", "a thing, an object")


def test_words_that_are_missing_are_empty(tmp_path: Path) -> None:
    write_raw(tmp_path / "train-00000-of-00001", [example()])

    assert opened(tmp_path).words(0) == ("", "")


def test_a_manifest_names_all_classes_and_refuses_others(tmp_path: Path) -> None:
    write_set(tmp_path, shards=1, records=4)
    table = json.dumps({"splits": {}, "class_names": ["a", "b", "c"]})
    (tmp_path / "convoy-manifest.json").write_text(table)
    records = opened(tmp_path)

    assert records.class_names == ("a", "b", "c")
    assert records.labels.tolist() == [0, 1, 2, UNKNOWN]
    assert "label 4, but convoy-manifest.json names 3 classes" in bad(records, 3).reason


def test_the_stored_index_gives_the_same_records(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    damage(paths[1], -1)
    first, second = opened(tmp_path), opened(tmp_path)

    assert (tmp_path / ".convoy-train.index").is_file()
    assert good(first) == good(second) == [*range(9), *range(10, 15)]
    assert first.faults == second.faults
    assert str(bad(first, 9)) == str(bad(second, 9))


def test_any_number_of_threads_reads_the_same(tmp_path: Path) -> None:
    write_set(tmp_path, shards=4, records=20)
    records = opened(tmp_path)
    numbers = np.random.default_rng(0).integers(0, 80, 2000).tolist()
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda number: bytes(records.read(number).encoded), numbers))

    assert read == [sample(number).encoded for number in numbers]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_reading_keeps_no_shard_open(tmp_path: Path) -> None:
    write_set(tmp_path, shards=6, records=2)
    records = opened(tmp_path)
    before = open_files()

    assert good(records) == list(range(12))
    assert open_files() == before


def test_records_go_to_other_processes(tmp_path: Path) -> None:
    write_set(tmp_path)
    records = opened(tmp_path)
    records.read(0)

    assert good(pickle.loads(pickle.dumps(records))) == list(range(15))


def test_a_record_outlives_its_shard(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    record = opened(tmp_path).read(0)
    os.truncate(paths[0], 0)

    assert bytes(record.encoded) == sample(0).encoded


# Damage


def damage(path: Path, place: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def test_a_shard_cut_in_a_record_keeps_what_is_whole(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    size = paths[1].stat().st_size
    os.truncate(paths[1], size - 10)
    records = opened(tmp_path)
    error = bad(records, 9)

    assert good(records) == [*range(9), *range(10, 15)]
    assert records.labels[9] == UNKNOWN
    assert error.code == ExitCode.DATA
    assert error.location.number == 4
    assert f"{paths[1]}: byte {error.location.offset}, record 4: cut in the middle: " in str(error)


def test_a_cut_loses_later_records_as_one(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    second = frames.FRAMING_BYTES + int.from_bytes(paths[1].read_bytes()[:8], "little")
    os.truncate(paths[1], second + 20)
    records = opened(tmp_path)

    assert len(records) == 12
    assert np.flatnonzero(records.labels == UNKNOWN).tolist() == [6]
    assert [fault.number for fault in records.faults] == [6]


def test_a_shard_of_no_bytes_is_one_fault(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    os.truncate(paths[1], 0)
    records = opened(tmp_path)

    assert len(records) == 11
    assert str(bad(records, 5)) == (
        f"{paths[1]}: byte 0, record 0: the shard is empty: a file of 0 bytes"
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\xff\xff", "not a tf.train.Example"),
        (example(encoded=None), "the field image/encoded has 0 values, not one"),
        (example(label=integers(0)), "the field image/class/label is 0, labels count from 1"),
        (example(label=integers(1, 2)), "the field image/class/label has 2 values, not one"),
        (example(label=integers(2**31)), "the field image/class/label is 2147483648"),
    ],
)
def test_a_wrong_record_under_right_checksums_is_named_with_its_field(
    record: bytes, reason: str, tmp_path: Path
) -> None:
    write_raw(tmp_path / "train-00000-of-00001", [example(), record, example()])
    records = opened(tmp_path)

    assert records.labels.tolist() == [0, UNKNOWN, 0]
    assert reason in str(bad(records, 1))
    assert bad(records, 1).location.number == 1


@pytest.mark.parametrize(
    ("pack", "name"), [(gzip.compress, "gzip"), (zlib.compress, "zlib")], ids=["gzip", "zlib"]
)
def test_a_compressed_shard_is_refused_by_name(
    pack: Callable[[bytes], bytes], name: str, tmp_path: Path
) -> None:
    paths = write_set(tmp_path)
    paths[1].write_bytes(pack(paths[1].read_bytes()))

    with pytest.raises(DataError, match=f"train-00001-of-00003: compressed with {name}"):
        opened(tmp_path)


def test_damage_after_indexing_is_found_at_every_read(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    records = opened(tmp_path)
    times = paths[0].stat()
    damage(paths[0], 40)
    os.utime(paths[0], ns=(times.st_atime_ns, times.st_mtime_ns))  # as a failing disk would

    assert "the checksum of its bytes is wrong" in str(bad(records, 0))
    assert good(records) == list(range(1, 15))


def test_twenty_thousand_flips_are_all_found(tmp_path: Path) -> None:
    (path,) = write_set(tmp_path, shards=1, records=3)
    data = path.read_bytes()
    whole = [frame.record for frame in walked(data)]
    missed = 0
    for place in np.random.default_rng(6).integers(0, len(data) * 8, 20_000).tolist():
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        found = list(walked(bytes(flipped)))
        hit = [frame for frame in found if frame.reason and place // 8 >= frame.offset]
        kept = [frame.record for frame in found if not frame.reason]
        missed += len(hit) != 1 or any(record not in whole for record in kept)

    assert missed == 0


def walked(data: bytes) -> Iterator[frames.TfRecordFrame]:
    return frames.walk(io.BytesIO(data), len(data))


# Files that change during the run


def changed(records: TfRecords, number: int) -> str:
    with pytest.raises(DataError) as caught:
        records.read(number)
    assert not isinstance(caught.value, BadRecordError)
    return str(caught.value)


def test_a_shard_cut_during_the_run_ends_it(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    records = opened(tmp_path)
    records.read(5)
    size = paths[1].stat().st_size
    os.truncate(paths[1], 100)
    said = changed(records, 9)

    assert f"{paths[1]}: replaced during the run: {size} bytes at first, now 100" in said
    assert good_or_changed(records) == [*range(5), *range(10, 15)]


def good_or_changed(records: TfRecords) -> list[int]:
    found = []
    for number in range(len(records)):
        try:
            records.read(number)
        except DataError:
            continue
        found.append(number)
    return found


def test_a_shard_replaced_during_the_run_ends_it(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    records = opened(tmp_path)
    records.read(0)
    other = tmp_path / "other"
    other.write_bytes(paths[0].read_bytes())
    os.utime(other, ns=(1, 1))
    other.replace(paths[0])

    assert "replaced during the run: written at" in changed(records, 0)


def test_a_shard_removed_during_the_run_ends_it(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    records = opened(tmp_path)
    paths[2].unlink()

    assert "train-00002-of-00003: cannot be read: No such file or directory" in changed(records, 14)


# Writing


def test_the_same_samples_make_the_same_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    counts = [write_shard(path, map(sample, range(5))) for path in (one, two)]

    assert counts == [5, 5]
    assert one.read_bytes() == two.read_bytes()


def test_a_shard_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing() -> Iterator[Sample]:
        yield sample(0)
        raise OSError(28, "No space left on device")

    (tmp_path / "shard").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        write_shard(tmp_path / "shard", failing())

    assert [path.name for path in tmp_path.iterdir()] == ["shard"]
    assert (tmp_path / "shard").read_bytes() == b"old"


SAMPLES = st.builds(
    Sample,
    encoded=st.binary(min_size=1, max_size=300),
    label=st.integers(0, 999),
    synset=st.text(max_size=12),
    filename=st.text(max_size=12),
    width=st.integers(1, 2**31),
    height=st.integers(1, 2**31),
    text=st.text(max_size=12),
    boxes=st.sampled_from([BOXES[:count] for count in range(3)]),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.lists(SAMPLES, min_size=1, max_size=6))
def test_any_samples_come_back(samples: list[Sample], tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard(path, samples)
    scan = scan_shard(path)

    assert scan.label.tolist() == [one.label for one in samples]
    assert scan.faults == []
    assert np.array_equal(scan.boxes, np.concatenate([one.boxes for one in samples]))


# Other programs


def test_another_reader_reads_our_shards(tmp_path: Path) -> None:
    loaded = pytest.importorskip("tfrecord.reader")
    (path,) = write_set(tmp_path, shards=1, records=6)
    read = list(loaded.tfrecord_loader(str(path), None))

    for number, found in enumerate(read):
        written = sample(number)
        assert bytes(found["image/encoded"]) == written.encoded
        assert found["image/class/label"].tolist() == [written.label + 1]
        assert bytes(found["image/class/synset"]) == written.synset.encode()
        assert bytes(found["image/filename"]) == written.filename.encode()
        assert found["image/object/bbox/ymax"].tolist() == written.boxes[:, 3].tolist()
        assert found["image/height"].tolist() == [6]
    assert len(read) == 6


def test_another_writers_checksums_are_ours(tmp_path: Path) -> None:
    writer = pytest.importorskip("tfrecord.writer").TFRecordWriter
    (path,) = write_set(tmp_path, shards=1, records=6)
    data = path.read_bytes()
    for frame in walked(data):
        head = data[frame.offset : frame.offset + 8]
        assert data[frame.offset + 8 : frame.offset + 12] == writer.masked_crc(head)
        end = frame.offset + frame.size
        assert data[end - 4 : end] == writer.masked_crc(frame.record)


def test_another_writers_shards_are_read(tmp_path: Path) -> None:
    writer = pytest.importorskip("tfrecord.writer").TFRecordWriter
    path = tmp_path / "validation-00000-of-00001"
    shard = writer(str(path))
    for number in range(6):
        one = sample(number)
        sides = zip(("xmin", "ymin", "xmax", "ymax"), one.boxes.T.tolist(), strict=True)
        shard.write(
            {
                "image/encoded": (one.encoded, "byte"),
                "image/class/label": (one.label + 1, "int"),
                "image/class/synset": (one.synset.encode(), "byte"),
                "extra": ([1, -1], "int"),
                **{f"image/object/bbox/{side}": (values, "float") for side, values in sides},
            }
        )
    shard.close()
    records = opened(tmp_path, "validation")

    assert good(records) == list(range(6))
    assert records.labels.tolist() == [sample(number).label for number in range(6)]
    assert records.class_names == tuple(f"n{label:08}" for label in range(4))
    for number in range(6):
        assert np.array_equal(records.read(number).boxes, sample(number).boxes)
