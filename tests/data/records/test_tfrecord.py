"""TFRecord data sets: writing, indexing, reading, and damaged files."""

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
from support.tfrecord_files import BOXES, example, open_quietly, sample, write_raw, write_set

from convoy.data.records import tfrecord_format
from convoy.data.records.ledger import BadRecordError, RecordLocation
from convoy.data.records.record import UNKNOWN_LABEL, EncodedImage, Records, Sample
from convoy.data.records.tfrecord import TfRecords, scan_shard, write_shard
from convoy.data.records.tfrecord_format import int64_list
from convoy.errors import DataError, ExitCode


def read_bad(records: TfRecords, number: int) -> BadRecordError:
    with pytest.raises(BadRecordError) as caught:
        records.read(number)
    return caught.value


def good_indices(records: TfRecords) -> list[int]:
    """Return the indices of readable records, after comparing each with the written sample."""
    found = []
    for number in range(len(records)):
        try:
            record = records.read(number)
        except BadRecordError:
            continue
        assert bytes(record.encoded) == sample(number).encoded
        found.append(number)
    return found


def test_records_are_read_back_as_written(tmp_path: Path) -> None:
    write_set(tmp_path, shards=3, records=5)
    records: Records = open_quietly(tmp_path)
    read: list[EncodedImage] = [records.read(number) for number in range(len(records))]
    written = [sample(number) for number in range(15)]

    assert [bytes(image.encoded) for image in read] == [record.encoded for record in written]
    assert records.labels.tolist() == [record.label for record in written]
    assert records.labels.dtype == np.int64
    assert records.class_names == tuple(f"n{label:08}" for label in range(4))
    for image, record in zip(read, written, strict=True):
        assert np.array_equal(image.boxes, record.boxes)


def test_a_location_has_file_offset_and_record_number(tmp_path: Path) -> None:
    paths = write_set(tmp_path, shards=2, records=3)
    records = open_quietly(tmp_path)
    second = tfrecord_format.FRAMING_BYTES + int.from_bytes(paths[1].read_bytes()[:8], "little")

    assert records.location(0) == RecordLocation(str(paths[0]), 0, 0)
    assert records.location(4) == RecordLocation(str(paths[1]), second, 1)


def test_a_record_has_a_file_name_and_a_class_description(tmp_path: Path) -> None:
    write_set(tmp_path, shards=2, records=3)
    records = open_quietly(tmp_path)

    assert records.filename_and_text(4) == ("n00000000_4.JPEG", "a thing, an object")


def test_a_missing_file_name_or_description_is_empty(tmp_path: Path) -> None:
    write_raw(tmp_path / "train-00000-of-00001", [example()])

    assert open_quietly(tmp_path).filename_and_text(0) == ("", "")


def test_labels_beyond_the_classes_of_the_manifest_are_bad(tmp_path: Path) -> None:
    write_set(tmp_path, shards=1, records=4)
    table = json.dumps({"splits": {}, "class_names": ["a", "b", "c"]})
    (tmp_path / "convoy-manifest.json").write_text(table)
    records = open_quietly(tmp_path)

    assert records.class_names == ("a", "b", "c")
    assert records.labels.tolist() == [0, 1, 2, UNKNOWN_LABEL]
    assert "label 4, but convoy-manifest.json lists 3 classes" in read_bad(records, 3).reason


def test_the_stored_index_gives_the_same_records(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    flip_bit(paths[1], -1)
    first, second = open_quietly(tmp_path), open_quietly(tmp_path)

    assert (tmp_path / ".convoy-train.index").is_file()
    assert good_indices(first) == good_indices(second) == [*range(9), *range(10, 15)]
    assert first.faults == second.faults
    assert str(read_bad(first, 9)) == str(read_bad(second, 9))


def test_many_threads_read_the_same_records(tmp_path: Path) -> None:
    write_set(tmp_path, shards=4, records=20)
    records = open_quietly(tmp_path)
    numbers = np.random.default_rng(0).integers(0, 80, 2000).tolist()
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda number: bytes(records.read(number).encoded), numbers))

    assert read == [sample(number).encoded for number in numbers]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_reading_keeps_no_shard_open(tmp_path: Path) -> None:
    write_set(tmp_path, shards=6, records=2)
    records = open_quietly(tmp_path)
    before = open_files()

    assert good_indices(records) == list(range(12))
    assert open_files() == before


def test_records_can_be_pickled(tmp_path: Path) -> None:
    write_set(tmp_path)
    records = open_quietly(tmp_path)
    records.read(0)

    assert good_indices(pickle.loads(pickle.dumps(records))) == list(range(15))


def test_a_record_outlives_its_shard(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    record = open_quietly(tmp_path).read(0)
    os.truncate(paths[0], 0)

    assert bytes(record.encoded) == sample(0).encoded


# Damage


def flip_bit(path: Path, position: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def test_a_shard_truncated_inside_a_record_keeps_complete_records(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    size = paths[1].stat().st_size
    os.truncate(paths[1], size - 10)
    records = open_quietly(tmp_path)
    error = read_bad(records, 9)

    assert good_indices(records) == [*range(9), *range(10, 15)]
    assert records.labels[9] == UNKNOWN_LABEL
    assert error.code == ExitCode.DATA
    assert error.location.number == 4
    assert f"{paths[1]}: byte {error.location.offset}, record 4: truncated: " in str(error)


def test_all_records_after_a_truncation_are_one_bad_record(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    second = tfrecord_format.FRAMING_BYTES + int.from_bytes(paths[1].read_bytes()[:8], "little")
    os.truncate(paths[1], second + 20)
    records = open_quietly(tmp_path)

    assert len(records) == 12
    assert np.flatnonzero(records.labels == UNKNOWN_LABEL).tolist() == [6]
    assert [fault.number for fault in records.faults] == [6]


def test_a_shard_of_0_bytes_is_one_fault(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    os.truncate(paths[1], 0)
    records = open_quietly(tmp_path)

    assert len(records) == 11
    assert str(read_bad(records, 5)) == (
        f"{paths[1]}: byte 0, record 0: the shard is empty (0 bytes)"
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\xff\xff", "not a tf.train.Example"),
        (example(encoded=None), "the field image/encoded has 0 values, not one"),
        (example(label=int64_list(0)), "the field image/class/label is 0, but labels start at 1"),
        (example(label=int64_list(1, 2)), "the field image/class/label has 2 values, not one"),
        (example(label=int64_list(2**31)), "the field image/class/label is 2147483648"),
    ],
)
def test_an_invalid_record_with_valid_checksums_is_reported_with_its_field(
    record: bytes, reason: str, tmp_path: Path
) -> None:
    write_raw(tmp_path / "train-00000-of-00001", [example(), record, example()])
    records = open_quietly(tmp_path)

    assert records.labels.tolist() == [0, UNKNOWN_LABEL, 0]
    assert reason in str(read_bad(records, 1))
    assert read_bad(records, 1).location.number == 1


@pytest.mark.parametrize(
    ("compress", "name"), [(gzip.compress, "gzip"), (zlib.compress, "zlib")], ids=["gzip", "zlib"]
)
def test_a_compressed_shard_is_refused_with_its_name(
    compress: Callable[[bytes], bytes], name: str, tmp_path: Path
) -> None:
    paths = write_set(tmp_path)
    paths[1].write_bytes(compress(paths[1].read_bytes()))

    with pytest.raises(DataError, match=f"train-00001-of-00003: compressed with {name}"):
        open_quietly(tmp_path)


def test_damage_after_indexing_is_detected_by_every_read(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    records = open_quietly(tmp_path)
    times = paths[0].stat()
    flip_bit(paths[0], 40)
    os.utime(paths[0], ns=(times.st_atime_ns, times.st_mtime_ns))  # as a failing disk would

    assert "the checksum of its bytes is wrong" in str(read_bad(records, 0))
    assert good_indices(records) == list(range(1, 15))


def test_flipped_bits_are_always_detected(tmp_path: Path) -> None:
    (path,) = write_set(tmp_path, shards=1, records=3)
    data = path.read_bytes()
    records = [frame.record for frame in read_frames(data)]
    missed = 0
    for bit in np.random.default_rng(6).integers(0, len(data) * 8, 20_000).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = list(read_frames(bytes(flipped)))
        bad = [frame for frame in found if frame.reason and bit // 8 >= frame.offset]
        good = [frame.record for frame in found if not frame.reason]
        missed += len(bad) != 1 or any(record not in records for record in good)

    assert missed == 0


def read_frames(data: bytes) -> Iterator[tfrecord_format.TfRecordFrame]:
    return tfrecord_format.iter_frames(io.BytesIO(data), len(data))


# Files that change during the run


def read_error(records: TfRecords, number: int) -> str:
    with pytest.raises(DataError) as caught:
        records.read(number)
    assert not isinstance(caught.value, BadRecordError)
    return str(caught.value)


def test_a_shard_truncated_during_the_run_ends_it(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    records = open_quietly(tmp_path)
    records.read(5)
    size = paths[1].stat().st_size
    os.truncate(paths[1], 100)
    message = read_error(records, 9)

    assert f"{paths[1]}: changed during the run: {size} bytes at first, 100 now" in message
    assert readable_indices(records) == [*range(5), *range(10, 15)]


def readable_indices(records: TfRecords) -> list[int]:
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
    records = open_quietly(tmp_path)
    records.read(0)
    other = tmp_path / "other"
    other.write_bytes(paths[0].read_bytes())
    os.utime(other, ns=(1, 1))
    other.replace(paths[0])

    assert "changed during the run: modification time" in read_error(records, 0)


def test_a_shard_removed_during_the_run_ends_it(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    records = open_quietly(tmp_path)
    paths[2].unlink()

    assert "train-00002-of-00003: cannot be read: No such file or directory" in read_error(
        records, 14
    )


# Writing


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    counts = [write_shard(path, map(sample, range(5))) for path in (first, second)]

    assert counts == [5, 5]
    assert first.read_bytes() == second.read_bytes()


def test_a_shard_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail_after_one() -> Iterator[Sample]:
        yield sample(0)
        raise OSError(28, "No space left on device")

    (tmp_path / "shard").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        write_shard(tmp_path / "shard", fail_after_one())

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
def test_any_samples_are_read_back(samples: list[Sample], tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard(path, samples)
    scan = scan_shard(path)

    assert scan.label.tolist() == [sample.label for sample in samples]
    assert scan.faults == []
    assert np.array_equal(scan.boxes, np.concatenate([sample.boxes for sample in samples]))


# Other programs


def test_another_library_reads_our_shards(tmp_path: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader")
    (path,) = write_set(tmp_path, shards=1, records=6)
    read = list(reader.tfrecord_loader(str(path), None))

    for number, found in enumerate(read):
        written = sample(number)
        assert bytes(found["image/encoded"]) == written.encoded
        assert found["image/class/label"].tolist() == [written.label + 1]
        assert bytes(found["image/class/synset"]) == written.synset.encode()
        assert bytes(found["image/filename"]) == written.filename.encode()
        assert found["image/object/bbox/ymax"].tolist() == written.boxes[:, 3].tolist()
        assert found["image/height"].tolist() == [6]
    assert len(read) == 6


def test_our_checksums_match_another_library(tmp_path: Path) -> None:
    writer = pytest.importorskip("tfrecord.writer").TFRecordWriter
    (path,) = write_set(tmp_path, shards=1, records=6)
    data = path.read_bytes()
    for frame in read_frames(data):
        length = data[frame.offset : frame.offset + 8]
        assert data[frame.offset + 8 : frame.offset + 12] == writer.masked_crc(length)
        end = frame.offset + frame.size
        assert data[end - 4 : end] == writer.masked_crc(frame.record)


def test_shards_written_by_another_library_are_read(tmp_path: Path) -> None:
    writer = pytest.importorskip("tfrecord.writer").TFRecordWriter
    path = tmp_path / "validation-00000-of-00001"
    shard = writer(str(path))
    for number in range(6):
        written = sample(number)
        sides = zip(("xmin", "ymin", "xmax", "ymax"), written.boxes.T.tolist(), strict=True)
        shard.write(
            {
                "image/encoded": (written.encoded, "byte"),
                "image/class/label": (written.label + 1, "int"),
                "image/class/synset": (written.synset.encode(), "byte"),
                "extra": ([1, -1], "int"),
                **{f"image/object/bbox/{side}": (values, "float") for side, values in sides},
            }
        )
    shard.close()
    records = open_quietly(tmp_path, "validation")

    assert good_indices(records) == list(range(6))
    assert records.labels.tolist() == [sample(number).label for number in range(6)]
    assert records.class_names == tuple(f"n{label:08}" for label in range(4))
    for number in range(6):
        assert np.array_equal(records.read(number).boxes, sample(number).boxes)
