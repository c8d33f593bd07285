"""The original file names of images in tar shards."""

import json
from pathlib import Path

import pytest
from support.tar_files import IMAGE, sample, write_tar

from convoy.data.records.tar import read_names


def json_with_filename(name: object) -> bytes:
    return json.dumps({"bbox": None, "filename": name}).encode()


def test_the_file_name_comes_from_the_json_or_else_from_the_tar(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        *[*sample("000", 0), ("000.json", json_with_filename("cat,1.JPEG"))],
        *sample("dogs/7", 1),
        *[("8.json", json_with_filename("\udcff.png")), ("8.png", IMAGE), ("8.cls", b"1")],
    )

    assert list(read_names(path)) == [b"cat,1.JPEG", b"7.jpg", b"\xff.png"]


@pytest.mark.parametrize(
    "text",
    [
        json_with_filename(3),
        json_with_filename(None),
        json_with_filename("\ud800"),
        b"[]",
        b"{",
        b"3",
        b"[" * 10**5,
    ],
    ids=len,
)
def test_a_json_without_a_usable_name_is_ignored(text: bytes, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", *sample("000", 0), ("000.json", text))

    assert list(read_names(path)) == [b"000.jpg"]


def test_the_rest_of_a_damaged_shard_has_one_empty_name(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", *sample("0", 0), *sample("1", 0), *sample("2", 0))
    path.write_bytes(path.read_bytes()[:3600])

    assert list(read_names(path)) == [b"0.jpg", b""]
