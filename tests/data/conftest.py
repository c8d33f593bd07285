"""A fixture for real photos, if the machine has them."""

import tarfile
from pathlib import Path

import pytest

_ARCHIVE = "shared/data/photos.tar"  # relative to a folder above the repository


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train/<class>/*.JPEG`, `validation/…` and the boxes of 207 real photos."""
    archives = [parent / _ARCHIVE for parent in Path(__file__).parents]
    archive = next((path for path in archives if path.is_file()), None)
    if archive is None:
        pytest.skip(f"no real photos: {_ARCHIVE} is in no folder above the repository")
    unpacked = tmp_path_factory.mktemp("photos")
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    return unpacked / "photos"
