"""Real photos in all forms: what a training makes of them."""

from pathlib import Path

import pytest
from small_photos import contents, converted, trained_weights

from convoy.data.records.record import Form

WAY: tuple[Form, ...] = ("tfrecord", "webdataset", "folder")


def test_real_photos_come_back_as_they_were(photos: Path, tmp_path: Path) -> None:
    here = photos
    for form in WAY:
        here = converted(here, tmp_path / form, form, shard_records=20)

    assert contents(here, "train") == contents(photos, "train")
    assert contents(here, "validation") == contents(photos, "validation")


@pytest.mark.processes
@pytest.mark.slow
def test_training_on_all_forms_of_real_photos_gives_the_same_weights(
    photos: Path, tmp_path: Path
) -> None:
    found = {trained_weights(photos, tmp_path / "run", "--image-size=64")}
    here = photos
    for form in WAY:
        here = converted(here, tmp_path / form, form, shard_records=20)
        found.add(trained_weights(here, tmp_path / f"run-{form}", "--image-size=64"))

    assert len(found) == 1
