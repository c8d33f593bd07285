"""Real photos in all formats: the same records and the same trained weights."""

from pathlib import Path

import pytest
from support.small_photos import contents, converted, trained_weights

from convoy.data.records.record import DataFormat

FORMATS: tuple[DataFormat, ...] = ("tfrecord", "webdataset", "folder")


def test_real_photos_are_preserved(photos: Path, tmp_path: Path) -> None:
    folder = photos
    for data_format in FORMATS:
        folder = converted(folder, tmp_path / data_format, data_format, shard_records=20)

    assert contents(folder, "train") == contents(photos, "train")
    assert contents(folder, "validation") == contents(photos, "validation")


@pytest.mark.processes
@pytest.mark.slow
def test_training_on_all_formats_gives_the_same_weights(photos: Path, tmp_path: Path) -> None:
    weights = {trained_weights(photos, tmp_path / "run", "--image-size=64")}
    folder = photos
    for data_format in FORMATS:
        folder = converted(folder, tmp_path / data_format, data_format, shard_records=20)
        weights.add(trained_weights(folder, tmp_path / f"run-{data_format}", "--image-size=64"))

    assert len(weights) == 1
