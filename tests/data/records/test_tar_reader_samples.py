"""Scanning one tar shard: samples, labels, boxes, and the reason for each bad sample."""

import gzip
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from support.sweeps import sweep
from support.tar_files import IMAGE, sample, tar_bytes, write_tar

from convoy.data.records.index_builder import ShardScan
from convoy.data.records.record import MAX_RECORD_BYTES, UNKNOWN_LABEL
from convoy.data.records.tar_reader import scan_shard
from convoy.errors import DataError


def scan(folder: Path, *members: tuple[str, bytes]) -> ShardScan:
    return scan_shard(write_tar(folder / "train-000000.tar", *members))


def reason(folder: Path, *members: tuple[str, bytes]) -> str:
    """Return why the second of three samples is bad."""
    found = scan(folder, *sample("0", 5), *members, *sample("2", 6))
    assert found.label.tolist() == [5, UNKNOWN_LABEL, 6]
    ((index, message),) = found.faults
    assert index == 1
    return message


def boxes(folder: Path, text: str) -> list[list[float]]:
    found = scan(folder, *sample("0", 5), ("0.json", text.encode()))
    assert found.faults == []
    assert found.box_count.tolist() == [len(found.boxes)]
    return found.boxes.tolist()


def test_samples_are_scanned_with_location_label_and_checksum(tmp_path: Path) -> None:
    found = scan(tmp_path, *sample("0", 7), *sample("1", 0, b"\x89PNG another"))
    data = (tmp_path / "train-000000.tar").read_bytes()
    images = [
        data[offset : offset + size] for offset, size in zip(found.offset, found.size, strict=True)
    ]

    assert images == [IMAGE, b"\x89PNG another"]
    assert found.label.tolist() == [7, 0]
    assert found.crc.tolist() == [google_crc32c.value(image) for image in images]
    assert found.faults == []


def test_members_are_grouped_by_the_name_before_the_first_dot(tmp_path: Path) -> None:
    found = scan(
        tmp_path,
        *[("./a.b/1.JPG", b"one"), ("./a.b/1.Cls", b"3"), ("./a.b/1.seg.png", b"mask")],
        *[("./a.b/2.cls", b"4"), ("./a.b/2.webp", b"two")],
    )

    assert found.label.tolist() == [3, 4]
    assert found.faults == []


def test_members_outside_of_samples_are_skipped(tmp_path: Path) -> None:
    found = scan(
        tmp_path,
        *[("__info__.json", b"{"), ("__x__/1.jpg", b"?"), ("README", b"?"), ("a/.jpg", b"?")],
        *sample("0", 1),
    )

    assert (found.label.tolist(), found.faults) == ([1], [])


def test_a_key_that_reappears_later_is_a_new_sample(tmp_path: Path) -> None:
    found = scan(tmp_path, *sample("0", 1), *sample("1", 2), *sample("0", 3))

    assert found.label.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("1.cls", b"0")], "sample '1' has no image"),
        ([("1.jpg", IMAGE)], "sample '1' has no .cls"),
        ([("1.cls", b"0"), ("1.jpg", IMAGE), ("1.png", IMAGE)], "has 2 images"),
        ([("1.cls", b"0"), ("1.jpg", IMAGE), ("1.jpg", IMAGE)], "has .jpg twice"),
        ([("1.cls", b"0"), ("1.CLS", b"1"), ("1.jpg", IMAGE)], "has .cls twice"),
        ([("1.cls", b"0"), ("1.jpg", b"")], f"has an image of 0 bytes; the limits are 1 … {2**26}"),
        ([("1.cls", b"0"), ("1.pth", b"")], "is a tensor (.pth, pickle), which is never loaded"),
        (sample("1", ""), "has the label '', which is not an integer"),
        (sample("1", "-1"), "has the label '-1', which is not an integer"),
        (sample("1", "1 2"), "which is not an integer"),
        (sample("1", "1.0"), "which is not an integer"),
        (sample("1", "n01440764"), "which is not an integer"),
        (sample("1", "9" * 5000), "which is not an integer"),
        (sample("1", 2**17), f"has the label {2**17}; the limit is {2**17 - 1}"),
        ([*sample("1", 0), ("1.json", b"{")], "has a .json that cannot be read"),
        ([*sample("1", 0), ("1.json", b"[" * 10**5)], "has a .json that cannot be read"),
        ([*sample("1", 0), ("1.json", b"\xff")], "has a .json that cannot be read"),
        ([*sample("1", 0), ("1.json", b"[1]")], "has a .json that is not an object"),
        ([*sample("1", 0), ("1.json", bytes(2**20 + 1))], "has a .json of 1048577 bytes"),
        ([*sample("1", 0), ("1.json", b'{"bbox": [1, 2]}')], "not a list of four numbers"),
        ([*sample("1", 0), ("1.json", b'{"bbox": "0011"}')], "not a list of four numbers"),
        (
            [*sample("1", 0), ("1.json", b'{"bbox": [[0, 0, 1, 1], 1]}')],
            "not a list of four numbers",
        ),
        ([*sample("1", 0), ("1.json", b'{"bbox": [0, 0, 1, NaN]}')], "not a list of four numbers"),
        (
            [*sample("1", 0), ("1.json", b'{"bbox": [0, 0, 1, 1e999]}')],
            "not a list of four numbers",
        ),
        ([*sample("1", 0), ("1.json", b'{"bbox": [0, 0, 1, true]}')], "not a list of four numbers"),
        (
            [*sample("1", 0), ("1.json", b'{"bbox": [5, 6, 70, 80]}')],
            "5, 6, 70, 80: must be fractions",
        ),
        ([*sample("1", 0), ("1.json", b'{"bbox": [1, 0, 0, 1]}')], "must be x1 ≤ x2 and y1 ≤ y2"),
        ([*sample("\x1b[31m", "x")], "sample '\\x1b[31m' has the label 'x'"),
    ],
)
def test_a_bad_sample_has_a_reason(
    members: list[tuple[str, bytes]], expected: str, tmp_path: Path
) -> None:
    assert expected in reason(tmp_path, *members)


def test_an_image_that_is_too_large_is_a_bad_sample(tmp_path: Path) -> None:
    assert f"has an image of {2**26 + 1} bytes" in reason(
        tmp_path, ("1.cls", b"0"), ("1.jpg", bytes(MAX_RECORD_BYTES + 1))
    )


@pytest.mark.parametrize("text", ["7", " 7\n", "007", "7\r\n"])
def test_labels_may_have_whitespace_and_leading_zeros(text: str, tmp_path: Path) -> None:
    assert scan(tmp_path, *sample("0", text)).label.tolist() == [7]


def test_a_sample_can_have_any_number_of_boxes(tmp_path: Path) -> None:
    assert boxes(tmp_path, '{"bbox": null}') == []
    assert boxes(tmp_path, '{"caption": "a dog"}') == []
    assert boxes(tmp_path, '{"bbox": []}') == []
    assert boxes(tmp_path, '{"bbox": [0, 0.25, 1, 0.5]}') == [[0, 0.25, 1, 0.5]]
    assert boxes(tmp_path, '{"bbox": [[0, 0, 1, 1], [0, 0, 0.5, 1]]}') == [
        [0, 0, 1, 1],
        [0, 0, 0.5, 1],
    ]


def test_boxes_are_clipped_and_boxes_without_area_are_dropped(tmp_path: Path) -> None:
    text = '{"bbox": [[-0.001, 0, 1.002, 1], [0.5, 0, 0.5, 1]]}'

    assert boxes(tmp_path, text) == [[0, 0, 1, 1]]


def test_boxes_belong_to_their_samples(tmp_path: Path) -> None:
    box = ("1.json", b'{"bbox": [0, 0, 1, 0.5]}')
    found = scan(tmp_path, *sample("0", 1), *sample("1", 2), box, *sample("2", 3))

    assert found.box_count.tolist() == [0, 1, 0]
    assert np.array_equal(found.boxes, [[0, 0, 1, 0.5]])


THREE_SAMPLES = tar_bytes(*sample("0", 1), *sample("1", 2), *sample("2", 3))
STARTS = [512 * 4 * number for number in range(4)]  # of the samples, and of the end marker


@sweep("size", range(0, STARTS[3] + 512, 64))
def test_the_rest_of_a_truncated_shard_is_one_bad_record(size: int, tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    path.write_bytes(THREE_SAMPLES[:size])
    found = scan_shard(path)
    # A sample is complete only if the next header is present.
    complete = sum(size > start + 512 for start in STARTS[1:])

    assert found.label.tolist() == [*range(1, complete + 1), UNKNOWN_LABEL]
    assert found.offset[-1] == min(STARTS[complete], size)
    assert found.offset[-1] + found.size[-1] == size
    assert [number for number, _ in found.faults] == [complete]
    assert len(found.crc) == complete + 1


def test_samples_before_a_second_tar_in_the_file_are_good(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    path.write_bytes(THREE_SAMPLES + THREE_SAMPLES)
    found = scan_shard(path)

    assert found.label.tolist() == [1, 2, 3, UNKNOWN_LABEL]
    assert "were two files concatenated?" in found.faults[0][1]


def test_a_compressed_shard_is_refused_with_the_compression(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    path.write_bytes(gzip.compress(THREE_SAMPLES))

    with pytest.raises(DataError, match=r"train-000000\.tar: compressed with gzip"):
        scan_shard(path)
