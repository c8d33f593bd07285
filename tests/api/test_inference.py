"""convoy.load and convoy.predict: the network and the preprocessing of validation."""

import copy
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.run_convoy import convoy as run_command

import convoy
from convoy.api.inference import Prediction, predict_batches
from convoy.data.sources.shapes import ShapesSource
from convoy.errors import ConfigError, DataError

TINY: dict[str, Any] = {
    "image_size": 32,
    "samples": 64,
    "micro_batch_size": 8,
    "epochs": 1,
    "lr": 0.02,
    "threads": 1,
    "progress": "none",
}
# The first one in every test run; test_load.py compares the outputs of all families.
FAMILIES = [
    "resnet8",
    *(
        pytest.param(name, marks=pytest.mark.evidence)
        for name in ("resnext11", "efficientnet-cifar", "squeezenet", "mobilenet-v3-small")
    ),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> convoy.Run:
    folder = tmp_path_factory.mktemp("inference") / "run"
    return convoy.train(model="resnet8", output=folder, **TINY)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six JPEG files of random colors, larger than the network's input."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for index in range(6):
        small = rng.integers(0, 255, (8, 10, 3), np.uint8)
        image = Image.fromarray(small).resize((100, 80), Image.Resampling.BICUBIC)
        image.save(folder / f"{index}.jpg", quality=95)
    return folder


@pytest.mark.parametrize("model", FAMILIES)
def test_the_loaded_network_has_the_accuracy_of_the_run(tmp_path: Path, model: str) -> None:
    run = convoy.train(model=model, output=tmp_path / "run", **TINY)
    network = convoy.load(run)

    source = ShapesSource(2_000, 32, 0, "validation")
    ids = np.arange(len(source))
    images = [network.transform(pixels) for pixels in source.pixels(ids)]
    with torch.inference_mode():
        logits = torch.cat([network(torch.stack(batch)) for batch in _batches(images, 100)])

    correct = (logits.argmax(1).numpy() == source.labels(ids)).mean()
    assert correct == run.summary.top1
    assert network.classes == source.class_names


def _batches(images: list[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    return [images[start : start + size] for start in range(0, len(images), size)]


def test_the_network_can_be_copied_compiled_and_exported(run: convoy.Run) -> None:
    network, images = convoy.load(run), torch.randn(4, 3, 32, 32)

    expected = network(images)

    assert not network.training
    assert torch.equal(copy.deepcopy(network)(images), expected)
    exported = torch.export.export(network, (images,)).module()
    torch.testing.assert_close(exported(images), expected)
    compiled = torch.compile(network, backend="eager")
    torch.testing.assert_close(compiled(images), expected)


def test_without_folding_the_network_has_the_weights_of_the_checkpoint(run: convoy.Run) -> None:
    network = convoy.load(run, fold_batch_norm=False)

    names = {name.removeprefix("network.layers.") for name in network.state_dict()}
    assert {"conv1.weight", "bn1.running_mean", "fc.bias"} <= names


def test_an_image_may_be_a_path_bytes_a_picture_or_an_array(run: convoy.Run, photos: Path) -> None:
    transform, file = convoy.load(run).transform, photos / "0.jpg"
    with Image.open(file) as opened:
        picture = opened.copy()

    from_path = transform(file)

    assert from_path.shape == (3, 32, 32) and from_path.dtype == torch.float32
    assert torch.equal(transform(file.read_bytes()), from_path)
    assert torch.equal(transform(str(file)), from_path)
    assert torch.equal(transform(np.asarray(picture)), transform(picture))
    assert (transform(picture) - from_path).abs().max() < 0.2  # another JPEG decoder


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (np.zeros((4, 4, 3)), ["uint8", "float64"]),
        (np.zeros((4, 4, 4), np.uint8), ["(4, 4, 4)"]),
        (b"no image", ["not a JPEG"]),
        ("missing.jpg", ["missing.jpg", "No such file"]),
        (7, ["int", "path"]),
    ],
)
def test_what_is_not_an_image_is_refused(run: convoy.Run, image: Any, facts: list[str]) -> None:
    with pytest.raises(DataError) as error:
        convoy.predict(run, [image])

    assert all(fact in str(error.value) for fact in facts)


def test_predictions_are_sorted_probabilities(run: convoy.Run, photos: Path) -> None:
    files = sorted(photos.iterdir())

    predictions = convoy.predict(run, files, top_k=3, batch_size=4)

    assert [prediction.image for prediction in predictions] == list(map(str, files))
    for prediction in predictions:
        assert len(prediction.classes) == 3
        assert list(prediction.probabilities) == sorted(prediction.probabilities, reverse=True)
        assert 0 < sum(prediction.probabilities) <= 1
    assert convoy.predict(convoy.load(run), files[0], top_k=3) == [
        convoy.predict(run, str(files[0]), top_k=3)[0]
    ]


def test_more_classes_than_there_are_give_all_of_them(run: convoy.Run, photos: Path) -> None:
    (prediction,) = convoy.predict(run, photos / "0.jpg", top_k=99)

    assert sorted(prediction.classes) == sorted(ShapesSource.class_names)
    assert sum(prediction.probabilities) == pytest.approx(1)


def test_an_unreadable_image_keeps_its_place_in_the_batch(run: convoy.Run, photos: Path) -> None:
    images = [photos / "0.jpg", b"no image", photos / "1.jpg"]
    results = list(predict_batches(convoy.load(run), images, top_k=1, batch_size=3))

    assert [isinstance(result, DataError) for result in results] == [False, True, False]
    assert [result.image for result in results if isinstance(result, Prediction)] == [
        str(photos / "0.jpg"),
        str(photos / "1.jpg"),
    ]


def test_top_k_must_be_positive(run: convoy.Run) -> None:
    with pytest.raises(ConfigError, match="top_k"):
        convoy.predict(run, [], top_k=0)


def test_the_command_prints_the_predictions_of_python(run: convoy.Run, photos: Path) -> None:
    expected = convoy.predict(run, sorted(photos.iterdir()), top_k=2)

    as_json = json.loads(run_command("predict", run.path, photos, "--top-k=2", "--json").out)
    as_csv = run_command("predict", run.path, str(photos / "*.jpg"), "--top-k=2", "--csv").out

    rows = list(csv.DictReader(io.StringIO(as_csv)))
    for number, prediction in enumerate(expected):
        assert as_json[number]["image"] == prediction.image
        names = [row["name"] for row in as_json[number]["classes"]]
        assert tuple(names) == prediction.classes
        assert rows[2 * number]["class"] == prediction.label


def test_the_command_reads_paths_from_stdin(
    run: convoy.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{photos / '1.jpg'}\n\n{photos / '2.jpg'}\n"))

    printed = run_command("predict", run.path, "-", "--json")

    images = [row["image"] for row in json.loads(printed.out)]
    assert images == [str(photos / "1.jpg"), str(photos / "2.jpg")]


def test_an_unreadable_image_is_reported_and_the_others_are_predicted(
    run: convoy.Run, photos: Path, tmp_path: Path
) -> None:
    bad, sheet = tmp_path / "bad.jpg", tmp_path / "sheet.png"
    bad.write_bytes(b"\xff\xd8\xff damaged")

    printed = run_command("predict", run.path, bad, photos / "0.jpg", "--sheet", sheet)

    assert printed.code == 3
    assert str(bad) in printed.err and "0.jpg" in printed.out
    with Image.open(sheet) as picture:
        assert picture.width > 64


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["nothing-here-*.png"], "nothing-here-*.png"),
        ([], "no image"),
        (["x.jpg", "--json", "--csv"], "--csv"),
        (["x.jpg", "--top-k=0"], "--top-k"),
    ],
)
def test_a_wrong_command_exits_with_2(run: convoy.Run, words: list[str], fact: str) -> None:
    printed = run_command("predict", run.path, *words)

    assert printed.code == 2 and fact in printed.err


def test_an_empty_folder_has_no_images(run: convoy.Run, tmp_path: Path) -> None:
    printed = run_command("predict", run.path, tmp_path)

    assert printed.code == 2 and str(tmp_path) in printed.err


@pytest.mark.parametrize("image", [np.zeros((0, 4), np.uint8), "a\0b.png", ""])
def test_an_image_that_cannot_be_one_is_a_data_error(run: convoy.Run, image: Any) -> None:
    with pytest.raises(DataError):
        convoy.predict(run, image)


@pytest.mark.parametrize("options", [{"top_k": 1.5}, {"top_k": "2"}, {"batch_size": None}])
def test_counts_must_be_integers(run: convoy.Run, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="top_k and batch_size must be integers"):
        convoy.predict(run, [], **options)


def test_an_unknown_choice_is_refused_with_the_choices(run: convoy.Run) -> None:
    with pytest.raises(ConfigError, match=r"device must be one of auto, cpu.*'toaster'"):
        convoy.load(run, device="toaster")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"format must be one of safetensors.*'pickle'"):
        convoy.export(run, format="pickle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"naming must be one of .*timm.*'keras'"):
        convoy.export(run, naming="keras")  # type: ignore[arg-type]
