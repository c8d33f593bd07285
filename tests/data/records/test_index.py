"""The index file: loading, saving, and refusal of invalid contents."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from support.index_samples import large_index, small_index

from convoy.data.records import index as index_file
from convoy.data.records.index import (
    MAX_CLASSES,
    BadIndexError,
    Fault,
    Index,
    load,
    parse,
    save,
    write_header,
)
from convoy.data.records.shards import ShardedRecords

ARRAYS = ("file", "offset", "size", "label", "crc", "box_end", "boxes")


def saved_bytes(index: Index, folder: Path) -> bytes:
    path = folder / "index"
    path.unlink(missing_ok=True)
    save(index, path)
    return path.read_bytes()


def error_message(data: bytes) -> str:
    with pytest.raises(BadIndexError) as caught:
        parse(np.frombuffer(data, np.uint8))
    return str(caught.value)


def arrays_of(index: Index) -> dict[str, Any]:
    return {name: vars(index)[name] for name in ARRAYS}


def test_an_index_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    index = small_index()
    save(index, tmp_path / "index")
    loaded = load(tmp_path / "index")

    assert (loaded.shard_format, loaded.files, loaded.class_names, loaded.faults) == (
        *(index.shard_format, index.files, index.class_names, index.faults),
    )
    for name, array in arrays_of(loaded).items():
        assert array.dtype == vars(index)[name].dtype
        assert np.array_equal(array, vars(index)[name])


def test_checksums_of_images_are_stored(tmp_path: Path) -> None:
    index = replace(small_index(), crc=np.arange(7, dtype=np.uint32))

    assert parse(np.frombuffer(saved_bytes(index, tmp_path), np.uint8)).crc.tolist() == [*range(7)]


def test_an_index_without_records_is_valid(tmp_path: Path) -> None:
    empty = {name: array[:0] for name, array in arrays_of(small_index()).items()}
    index = replace(small_index(), files=(), class_names=(), faults=(), **empty)
    save(index, tmp_path / "index")

    assert len(load(tmp_path / "index")) == 0


def test_the_safetensors_library_reads_the_arrays(tmp_path: Path) -> None:
    save(small_index(), tmp_path / "index")
    with safe_open(tmp_path / "index", "numpy") as file:
        labels, boxes = file.get_tensor("label"), file.get_tensor("boxes")

    assert np.array_equal(labels, small_index().label)
    assert np.array_equal(boxes, small_index().boxes)


def test_the_arrays_are_memory_mapped_and_read_only(tmp_path: Path) -> None:
    save(small_index(), tmp_path / "index")
    index = load(tmp_path / "index")

    assert not any(
        array.flags.owndata or array.flags.writeable for array in arrays_of(index).values()
    )


def test_boxes_and_positions_belong_to_their_records(tmp_path: Path) -> None:
    index = small_index()
    records = ShardedRecords(tmp_path, index, ())

    assert [len(records.boxes(number)) for number in range(7)] == [0, 1, 0, 0, 0, 1, 2]
    assert [index.index_in_file(number) for number in range(7)] == [0, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 100, b"{}", bytes(4000)])
def test_other_bytes_are_not_an_index(data: bytes) -> None:
    assert error_message(data) == "invalid header"


def test_an_empty_file_is_not_an_index(tmp_path: Path) -> None:
    (tmp_path / "index").touch()

    with pytest.raises(BadIndexError, match="empty"):
        load(tmp_path / "index")


def test_a_flipped_bit_in_any_byte_is_detected(tmp_path: Path) -> None:
    data = bytearray(saved_bytes(small_index(), tmp_path))
    for position in range(len(data)):
        for bit in (1, 0x20, 0x80):
            data[position] ^= bit
            error_message(bytes(data))
            data[position] ^= bit


def test_a_truncated_index_is_detected_at_every_length(tmp_path: Path) -> None:
    data = saved_bytes(small_index(), tmp_path)
    for size in range(len(data)):
        error_message(data[:size])

    assert "after the header" in error_message(data + b"\0")


# Each change makes one part of an index inconsistent, with a valid checksum.
INCONSISTENT: dict[str, Callable[[Index], Index]] = {
    "file beyond": lambda i: replace(i, file=i.file + 1),
    "files not in order": lambda i: replace(i, file=i.file[::-1]),
    "offset negative": lambda i: replace(i, offset=i.offset - 1),
    "offset beyond": lambda i: replace(i, offset=i.offset + 1),
    "size negative": lambda i: replace(i, size=-i.size),
    "size beyond": lambda i: replace(i, size=i.size + 2**62),
    "sum beyond 64 bits": lambda i: replace(i, offset=i.offset + 2**62, size=i.size + 2**62),
    "label beyond": lambda i: replace(i, label=i.label + 1),
    "label negative": lambda i: replace(i, label=i.label - 1),
    "box_end falls": lambda i: replace(i, box_end=i.box_end[::-1]),
    "box_end falls in between": lambda i: replace(i, box_end=np.array([0, 1, 3, 2, 3, 4, 4])),
    "box_end negative": lambda i: replace(i, box_end=np.array([-1, 0, 0, 0, 0, 0, 4])),
    "box_end short": lambda i: replace(i, box_end=i.box_end - 1),
    "box not a number": lambda i: replace(i, boxes=i.boxes * np.float32("nan")),
    "box too large": lambda i: replace(i, boxes=i.boxes * 2),
    "box corners swapped": lambda i: replace(i, boxes=i.boxes[:, ::-1]),
    "fault beyond": lambda i: replace(i, faults=(Fault(7, "f", 0, "r"),)),
    "fault negative": lambda i: replace(i, faults=(Fault(-1, "f", 0, "r"),)),
    "fault of a good record": lambda i: replace(i, faults=(Fault(0, "f", 0, "r"),)),
    "duplicate fault": lambda i: replace(i, faults=i.faults * 2),
    "fault offset negative": lambda i: replace(i, faults=(Fault(2, "f", -5, "r"),)),
    "duplicate file": lambda i: replace(
        i, files=(i.files[0], replace(i.files[1], name=i.files[0].name))
    ),
    "too few records": lambda i: replace(i, files=i.files[:1]),
    "file size negative": lambda i: replace(i, files=(replace(i.files[0], bytes=-1), i.files[1])),
    "too many classes": lambda i: replace(i, class_names=("n",) * (MAX_CLASSES + 1)),
    "unknown format": lambda i: replace(i, shard_format="pickle"),  # type: ignore[arg-type]
    "too few checksums": lambda i: replace(i, crc=np.arange(3, dtype=np.uint32)),
}


@pytest.mark.parametrize("change", INCONSISTENT.values(), ids=INCONSISTENT)
def test_inconsistent_contents_are_refused(
    change: Callable[[Index], Index], tmp_path: Path
) -> None:
    error_message(saved_bytes(change(small_index()), tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"kind":[],"files":[],"class_names":[],"faults":[]}',
        b'{"kind":"tfrecord","files":{},"class_names":[],"faults":[]}',
        b'{"kind":"tfrecord","files":[["a",0,0]],"class_names":[],"faults":[]}',
        b'{"kind":"tfrecord","files":[["a",0,0,true]],"class_names":[],"faults":[]}',
        b'{"kind":"tfrecord","files":[["a",0,0,1e3]],"class_names":[],"faults":[]}',
        b'{"kind":"tfrecord","files":[["a",0,0,'
        + b"9" * 5000
        + b']],"class_names":[],"faults":[]}',
        b'{"kind":"tfrecord","files":[],"class_names":[1],"faults":[]}',
        b'{"kind":"tfrecord","files":[],"class_names":"ab","faults":[]}',
        b'{"kind":"tfrecord","files":[],"class_names":[],"faults":[1]}',
    ],
)
def test_an_invalid_table_of_names_is_refused(text: bytes) -> None:
    error_message(write_header([0, 0, 0, len(text)], google_crc32c.value(text)) + text)


@given(st.sampled_from(["label", "boxes", "crc", "text"]), st.integers(-(2**70), 2**70))
def test_a_length_in_the_header_allocates_nothing(name: str, length: int) -> None:
    header = json.loads(write_header([2, 2, 2, 2], 0)[8:])
    header[name]["shape"][0] = length
    text = json.dumps(header, separators=(",", ":")).encode()

    error_message(len(text).to_bytes(8, "little") + text + bytes(200))


def test_a_header_that_is_too_long_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: bytes) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("convoy.data.records.index.json.loads", fail)

    error_message((2**20).to_bytes(8, "little") + b" " * 2**20)


def test_an_index_with_too_much_text_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_MAX_TEXT_BYTES", 100)

    with pytest.raises(BadIndexError, match="the limit is 100"):
        save(small_index(), tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.evidence
@pytest.mark.processes
def test_an_index_of_imagenet_opens_fast_in_little_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(large_index(1_281_167, 1024), tmp_path / "index")
    process = psutil.Process()
    before, start = process.memory_info().rss, time.perf_counter()
    index = load(tmp_path / "index")
    seconds, added_bytes = time.perf_counter() - start, process.memory_info().rss - before
    with capsys.disabled():
        print(
            f"\n{len(index):,} records opened in {seconds:.2f} s, {added_bytes / 1e6:.0f} MB more"
        )

    assert added_bytes < 200e6
