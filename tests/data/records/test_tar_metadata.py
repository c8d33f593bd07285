"""metadata.json beside tar shards: valid and invalid contents."""

import json
from pathlib import Path

import pytest

from convoy.data.records.tar import Metadata, read_metadata
from convoy.errors import ConfigError, DataError

REFERENCE = {
    "train_length": 1281167,
    "validation_length": 50000,
    "format": "img",
    "shuffle": True,
    "train_transform_pipeline": [],
    "validation_transform_pipeline": ["Resize(256)", "CenterCrop(224)"],
    "seed": 0,
    "image_quality": 95,
    "checksum": "17aed9504492852ddcc2ac247413aa95",
}


def write(folder: Path, table: object) -> Path:
    (folder / "metadata.json").write_text(json.dumps(table))
    return folder


def test_each_split_has_its_length_and_applied_transforms(tmp_path: Path) -> None:
    write(tmp_path, REFERENCE)

    assert read_metadata(tmp_path, "train") == Metadata(1281167)
    assert read_metadata(tmp_path, "validation") == Metadata(
        50000, ("Resize(256)", "CenterCrop(224)")
    )


def test_all_metadata_is_optional(tmp_path: Path) -> None:
    assert read_metadata(tmp_path, "train") == Metadata()
    assert read_metadata(write(tmp_path, {}), "train") == Metadata()


def test_class_names_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"class_names": ["cat", "dog"]})

    assert read_metadata(tmp_path, "train").class_names == ("cat", "dog")


def test_pickled_tensors_are_refused_with_an_alternative(tmp_path: Path) -> None:
    write(tmp_path, {**REFERENCE, "format": "tensor"})

    with pytest.raises(ConfigError, match=r"'tensor' are pickled .* `convoy data convert`"):
        read_metadata(tmp_path, "train")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"train_length": "12"}', "train_length is '12', not a number of samples"),
        (b'{"train_length": -1}', "train_length is '-1'"),
        (b'{"train_length": true}', "train_length is 'True'"),
        (b'{"train_transform_pipeline": "Resize(256)"}', "is not a list of strings"),
        (b'{"train_transform_pipeline": [256]}', "is not a list of strings"),
        (b'{"class_names": ["cat", "cat"]}', "2 class_names, 1 of them distinct"),
    ],
)
def test_invalid_metadata_is_refused_with_the_reason(
    text: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "metadata.json").write_bytes(text)

    with pytest.raises(DataError) as caught:
        read_metadata(tmp_path, "train")
    assert f"{tmp_path}/metadata.json: " in str(caught.value)
    assert reason in str(caught.value)
