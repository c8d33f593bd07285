"""Exported files: the same bytes in every process, no local paths, prediction without convoy."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from support.generated_images import picture
from support.run_convoy import TINY, convoy

import convoy as package

ROOT = Path(__file__).parents[2]
FORMATS = {"safetensors": "safetensors", "torch-export": "pt2", "onnx": "onnx"}
EXPORT = "import sys; from convoy.cli.main import main; sys.exit(main(sys.argv[1:]))"
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ResNet-18 on 32-pixel images, its exports, and a photo."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("prediction")
    words = [word for word in TINY if not word.startswith(("--model=", "--epoch=", "--image-size"))]
    network = ("--model=resnet18", "--image-size=32", "--updates=1")
    assert convoy("train", *words, *network, "--output", folder / "run").code == 0
    for form, suffix in FORMATS.items():
        file = folder / f"mine.{suffix}"
        result = convoy("export", folder / "run", f"--format={form}", "--output", file)
        assert (result.code, result.err) == (0, "")
    Image.fromarray(picture(90, 71)).save(folder / "photo.jpg")
    return folder


@pytest.mark.parametrize("form", FORMATS)
def test_another_process_exports_the_same_bytes(folder: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "other-name.bin"
    target = file.with_suffix(f".{FORMATS[form]}")
    words = ["export", str(folder / "run"), f"--format={form}", "--output", str(target)]
    subprocess.run([sys.executable, "-c", EXPORT, *words], check=True, cwd=tmp_path)

    assert target.read_bytes() == (folder / f"mine.{FORMATS[form]}").read_bytes()


@pytest.mark.parametrize("suffix", FORMATS.values())
def test_exports_contain_no_local_paths(folder: Path, suffix: str) -> None:
    data = (folder / f"mine.{suffix}").read_bytes()
    (location,) = package.__path__
    paths = [location, str(folder), str(Path(torch.__file__).parents[1]), str(Path.home()), ".py"]

    assert [path for path in paths if len(path) > 1 and path.encode() in data] == []


def test_all_formats_contain_the_same_material_for_prediction(folder: Path) -> None:
    with safe_open(folder / "mine.safetensors", "pt") as file:
        weights = file.metadata()["prediction"]
    extra = {"prediction.json": ""}
    torch.export.load(folder / "mine.pt2", extra_files=extra)
    session = sys.modules["onnxruntime"].InferenceSession(folder / "mine.onnx")
    about = json.loads(weights)
    classes = about.pop("classes")

    assert extra["prediction.json"] == weights
    assert session.get_modelmeta().custom_metadata_map["prediction"] == weights
    assert (len(classes), classes[0]) == (10, package.load(folder / "run").classes[0])
    assert about == {
        "architecture": "torchvision/resnet18",
        "model": "resnet18",
        "image_size": 32,
        "resize": 32,
        "crop": "none",
        "mean": [0.477, 0.477, 0.477],
        "std": [0.263, 0.263, 0.263],
        "norm_eps": 1e-5,
    }


def documented_scripts() -> tuple[str, dict[str, str]]:
    """The preprocessing of docs/weights.md, and the prediction for each format."""
    page = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
    first, *scripts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return first, {
        suffix: text for text in scripts for suffix in FORMATS.values() if suffix in text
    }


@pytest.mark.parametrize("suffix", FORMATS.values())
def test_the_documented_prediction_works_without_convoy(
    folder: Path, tmp_path: Path, suffix: str
) -> None:
    """torchvision, which is not installed, is replaced by a plain ResNet-18 with its names."""
    preprocessing, scripts = documented_scripts()
    shutil.copy(folder / f"mine.{suffix}", tmp_path)
    shutil.copy(folder / "photo.jpg", tmp_path)
    (tmp_path / "preprocessing.py").write_text(preprocessing, encoding="utf-8")
    source = f"import sys\nsys.modules['convoy'] = None\n{_TORCHVISION}\n{scripts[suffix]}"
    paths = [str(tmp_path), str(ROOT / "tests")]
    source = f"import sys\nsys.path[:0] = {paths}\n{source}"
    result = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    (expected,) = package.predict(folder / "run", folder / "photo.jpg")

    assert result.stderr == "" and result.returncode == 0
    label, probability = result.stdout.rsplit(maxsplit=1)
    assert label == expected.label
    assert np.isclose(float(probability), expected.probabilities[0], atol=0.02)
    assert sum(map(bool, scripts[suffix].splitlines())) <= 11


_TORCHVISION = """
import types
from support.torch_families import Conv, Residual, ResNet
from torch import nn

def get_model(name, num_classes):
    assert (name, num_classes) == ("resnet18", 10)
    groups, inputs = [], 64
    for outputs in (64, 128, 256, 512):
        blocks = []
        for stride in (1 if outputs == 64 else 2, 1):
            changes = stride == 2
            shortcut = Conv(inputs, outputs, 1, 2) if changes else None
            convs = [Conv(inputs, outputs, 3, stride), Conv(outputs, outputs, 3)]
            blocks.append(Residual(convs, shortcut, nn.BatchNorm2d))
            inputs = outputs
        groups.append(blocks)
    return ResNet(groups, Conv(3, 64, 7, 2), nn.BatchNorm2d, 512)

models = types.SimpleNamespace(get_model=get_model)
sys.modules["torchvision"] = types.SimpleNamespace(models=models)
"""
