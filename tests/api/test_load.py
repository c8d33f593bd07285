"""convoy.load gives the network of validation, for every family, dataset and kind of network."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import small_photos
from support.cifar_files import write_cifar10
from support.model_families import ALL
from support.networks import CLASSES
from torch import Tensor

import convoy
from convoy.data.sources.cifar import CIFAR10, open_cifar
from convoy.data.sources.pixel_source import GeneratedSource
from convoy.data.sources.shapes import ShapesSource
from convoy.run import validation

BATCH = 4
TINY: dict[str, Any] = {
    "micro_batch_size": 4,
    "updates": 2,
    "epochs": None,
    "lr": 0.01,
    "threads": 1,
    "dataloader_worker": 0,
    "progress": "none",
}
# One network of each family, and of each kind of norm.
EXPORTED = [
    "resnet8 A",
    "resnet11 v1",
    "resnext11",
    "efficientnet",
    "efficientnet groups",
    "efficientnet with proxy norm",
    "mobilenet-v3-small",
    "squeezenet",
]

EXPORTED_TO_ONNX = ["resnet8 A", "efficientnet with proxy norm"]  # this takes long


class Pictures(torch.utils.data.Dataset[tuple[Image.Image, int]]):
    """Random PIL images that are larger than the input of the network."""

    classes = tuple(f"kind {index}" for index in range(CLASSES))

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 2 * BATCH

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index >= len(self):
            raise IndexError(index)
        shape = (self.size + 3, self.size + 5, 3)
        pixels = np.random.default_rng(index).integers(0, 255, shape, np.uint8)
        return Image.fromarray(pixels), index % CLASSES


class Recorder:
    """The batches of images that a validation runs, and their logits."""

    def __init__(self) -> None:
        self.images: list[Tensor] = []
        self.logits: list[Tensor] = []

    def wrap(self, run: Callable[..., Iterator[Tensor | None]]) -> Callable[..., Any]:
        def recorded(network: Any, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
            for logits in run(network, self._copied(batches)):
                assert logits is not None
                self.logits.append(logits.clone())
                yield logits

        return recorded

    def _copied(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        for images in batches:
            assert images is not None
            self.images.append(images.clone())
            yield images


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    made, threads = Recorder(), torch.get_num_threads()
    recorded = made.wrap(validation.InferenceNetwork.run)
    monkeypatch.setattr(validation.InferenceNetwork, "run", recorded)
    torch.set_num_threads(1)  # as the runs have
    yield made
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], convoy.Run]:
    """A run of each small network, by name; each is trained once."""
    runs: dict[str, convoy.Run] = {}
    folder = tmp_path_factory.mktemp("families")

    def train(name: str) -> convoy.Run:
        if name not in runs:
            size = max(8, ALL[name].size)
            options = TINY | {"image_size": size} | dict(ALL[name].options)
            data = (Pictures(size), Pictures(size))
            output = folder / name.replace(" ", "-")
            runs[name] = convoy.train(data=data, output=output, **options)
        return runs[name]

    return train


def validate(run: convoy.Run, recorder: Recorder, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The images of a validation, and the logits of each of its batches."""
    recorder.images.clear()
    recorder.logits.clear()
    convoy.validate(run.checkpoints[-1], valid_batch_size=BATCH, **options)
    return torch.cat(recorder.images), list(recorder.logits)


def pictures(run: convoy.Run) -> Pictures:
    return Pictures(run.config["image_size"])


@pytest.mark.parametrize("name", ALL)
def test_the_logits_and_predictions_are_bitwise_those_of_validation(
    trained: Callable[[str], convoy.Run], recorder: Recorder, name: str
) -> None:
    run = trained(name)
    data = pictures(run)
    images, logits = validate(run, recorder, data=(data, data))
    network = convoy.load(run)

    inputs = torch.stack([network.transform(picture) for picture, _ in data])
    assert torch.equal(inputs, images)
    with torch.inference_mode():
        outputs = [network(batch) for batch in inputs.split(BATCH)]
    assert all(map(torch.equal, outputs, logits))
    assert torch.cat(logits).std() > 0
    assert not any(module.training for module in network.modules())
    assert network.classes == Pictures.classes

    found = convoy.predict(run, [picture for picture, _ in data], top_k=3, batch_size=BATCH)
    likely = torch.cat([batch.softmax(1) for batch in logits]).topk(3)
    assert [list(row.probabilities) for row in found] == likely.values.tolist()
    assert [row.classes for row in found] == [
        tuple(Pictures.classes[index] for index in row) for row in likely.indices.tolist()
    ]


@pytest.mark.parametrize(
    "name",
    [name if name in EXPORTED else pytest.param(name, marks=pytest.mark.slow) for name in ALL],
)
def test_every_network_can_be_copied_compiled_and_exported(
    trained: Callable[[str], convoy.Run], recorder: Recorder, name: str
) -> None:
    del recorder  # one thread
    torch.compiler.reset()  # it compiles the same function for a few modules only
    network, data = convoy.load(trained(name)), pictures(trained(name))
    images = torch.stack([network.transform(picture) for picture, _ in data])
    with torch.inference_mode():
        expected = network(images)
        copied = copy.deepcopy(network)
        compiled = torch.compile(network, backend="eager", fullgraph=True)

        assert torch.equal(copied(images), expected)
        assert copied.transform is not None and copied.classes == network.classes
        assert torch.equal(compiled(images), expected)
    exported = torch.export.export(network, (images,)).module()
    with torch.inference_mode():
        assert torch.equal(exported(images), expected)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_logits_depend_on_the_batch_size_by_rounding_only(
    trained: Callable[[str], convoy.Run], recorder: Recorder, name: str
) -> None:
    run, data = trained(name), pictures(trained(name))
    _, logits = validate(run, recorder, data=(data, data))
    network = convoy.load(run)

    with torch.inference_mode():
        single = [network(network.transform(picture)[None]) for picture, _ in data]

    torch.testing.assert_close(torch.cat(single), torch.cat(logits), rtol=1e-4, atol=1e-5)


@pytest.mark.evidence
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch itself
def test_a_network_compiled_by_the_inductor_differs_by_rounding_only(
    trained: Callable[[str], convoy.Run],
) -> None:
    network = convoy.load(trained("resnet8 A"))
    images = torch.randn(BATCH, 3, 12, 12)

    with torch.inference_mode():
        compiled = torch.compile(network)(images)

    torch.testing.assert_close(compiled, network(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["16.16", "16.32"])
def test_a_run_in_16_bits_has_the_logits_of_validation(
    tmp_path: Path, recorder: Recorder, precision: str
) -> None:
    data = (Pictures(12), Pictures(12))
    options = TINY | {"model": "resnet8", "image_size": 12, "precision": precision}
    run = convoy.train(data=data, output=tmp_path / "run", **options)
    _, logits = validate(run, recorder, data=(data[1], data[1]))
    network = convoy.load(run)

    images = torch.stack([network.transform(picture) for picture, _ in data[1]])
    with torch.inference_mode():
        outputs = [network(batch) for batch in images.split(BATCH)]
    assert all(map(torch.equal, outputs, logits))


# Runs the exported files of a folder; fails if convoy can be imported.
WITHOUT_CONVOY = """
import sys
sys.modules["convoy"] = None  # any import of it now raises ImportError
from pathlib import Path
import numpy as np, torch

def run(file, images):
    if file.suffix == ".pt2":
        return torch.export.load(file).module()(torch.from_numpy(images)).detach().numpy()
    import onnxruntime
    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]

for file in sorted(Path(sys.argv[1]).glob("*.*")):
    if file.suffix == ".npz":
        continue
    arrays = np.load(file.with_suffix(".npz"))
    difference = abs(run(file, arrays["images"]) - arrays["logits"]).max()
    print(file.name, difference / abs(arrays["logits"]).max())
try:
    import convoy
except ImportError:
    print("no convoy")
"""


def _export(run: convoy.Run, file: Path, format: Any) -> None:
    """Write the exported program, and images with their logits in an array file next to it."""
    network = convoy.load(run)
    images = torch.stack([network.transform(picture) for picture, _ in pictures(run)])
    convoy.export(run, file, format=format)
    with torch.inference_mode():
        logits = network(images)
    np.savez(file.with_suffix(".npz"), images=images.contiguous().numpy(), logits=logits.numpy())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("format", "names"),
    [
        ("torch-export", ["resnet8 A", "mobilenet-v3-small"]),
        pytest.param("torch-export", EXPORTED, marks=pytest.mark.evidence, id="all families"),
        pytest.param("onnx", EXPORTED_TO_ONNX, marks=pytest.mark.evidence, id="onnx"),
    ],
)
def test_an_exported_network_runs_without_convoy(
    trained: Callable[[str], convoy.Run], tmp_path: Path, format: str, names: list[str]
) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    suffix = {"torch-export": ".pt2", "onnx": ".onnx"}[format]
    for name in names:
        _export(trained(name), tmp_path / f"{name.replace(' ', '-')}{suffix}", format)

    command = [sys.executable, "-c", WITHOUT_CONVOY, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    *rows, last = result.stdout.splitlines()
    assert last == "no convoy" and len(rows) == len(names)
    assert all(float(row.split()[1]) < 1e-4 for row in rows), rows


class SmallData:
    """Datasets by name: the options of a run, and the validation images as users have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.photos = folder / "photos"

    def shapes(self) -> tuple[dict[str, Any], list[Any]]:
        source = ShapesSource(2_000, 16, 0, "validation")
        options = {"data": "shapes", "samples": 16, "image_size": 16}
        return options, list(source.pixels(np.arange(2_000)))

    def generated(self) -> tuple[dict[str, Any], list[Any]]:
        source = GeneratedSource(512, 16, 4, 0)
        options = {"data": "generated", "samples": 16, "image_size": 16, "num_classes": 4}
        return options, list(source.pixels(np.arange(512)))

    def cifar(self) -> tuple[dict[str, Any], list[Any]]:
        write_cifar10(self.folder)
        source = open_cifar(CIFAR10, self.folder, "validation")
        options = {"data": "cifar10", "data_dir": self.folder}
        return options, [Image.fromarray(pixels) for pixels in source.pixels(np.arange(20))]

    def folders(self) -> tuple[dict[str, Any], list[Any]]:
        small_photos.write_photos(self.photos, validation=2)
        options = {"data": "imagenet", "data_dir": self.photos, "image_size": 16}
        return options, sorted((self.photos / "validation").glob("*/*.JPEG"))

    def tfrecord(self) -> tuple[dict[str, Any], list[Any]]:
        return self._converted("tfrecord")

    def webdataset(self) -> tuple[dict[str, Any], list[Any]]:
        return self._converted("webdataset")

    def _converted(self, data_format: Any) -> tuple[dict[str, Any], list[Any]]:
        target = self.folder / "converted"
        small_photos.converted(small_photos.write_photos(self.photos), target, data_format)
        options = {"data": "imagenet", "data_dir": target, "image_size": 16}
        return options, [row[0] for row in small_photos.contents(target, "validation")]

    def own(self) -> tuple[dict[str, Any], list[Any]]:
        data = Pictures(16), Pictures(16)
        return {"data": data, "image_size": 16}, [picture for picture, _ in data[1]]


DATASETS = ["shapes", "generated", "cifar", "folders", "tfrecord", "webdataset", "own"]
TRANSFERS: list[dict[str, Any]] = [
    {"normalization_location": "device"},
    {"normalization_location": "none"},
    {"normalize_std": False},
    {"eight_bit_io": True, "normalization_location": "device"},
]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in DATASETS]
    + [(name, transfer) for name in ("cifar", "folders") for transfer in TRANSFERS],
    ids=str,
)
def test_the_transform_gives_the_images_of_validation_for_every_dataset(
    tmp_path: Path, recorder: Recorder, name: str, options: dict[str, Any]
) -> None:
    described, originals = getattr(SmallData(tmp_path), name)()
    output = tmp_path / "run"
    run = convoy.train(model="resnet8", output=output, **TINY | described | options)
    data = described["data"]
    images, _ = validate(run, recorder, **({} if isinstance(data, str) else {"data": data}))

    transform = convoy.load(run).transform
    inputs = torch.stack([transform(image) for image in originals])

    # A last batch with fewer images is padded.
    assert torch.equal(inputs, images[: len(inputs)])


OWN_NETWORKS = """
from torch import nn

def make(num_classes):
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, num_classes))

def make_another():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
"""
# In another process the network and the dataset of the runs are not known.
LOAD_AGAIN = """
import sys
import torch, convoy, own_networks
from convoy.errors import CheckpointError, ConfigError

own, built_in, output = sys.argv[1:]
try:
    convoy.load(own)
except ConfigError as error:
    print(error)
try:
    convoy.load(own, model=own_networks.make_another)
except CheckpointError as error:
    print(error)
images = torch.ones(2, 3, 12, 12)
networks = own_networks.make, own_networks.make(4), "own_networks:make"
for model in networks:
    loaded = convoy.load(own, model=model)
    torch.save(loaded(images), f"{output}-{networks.index(model)}.pt")
convoy.export(own, f"{output}.pt2", model=own_networks.make, format="torch-export")
print(convoy.load(built_in).classes)
"""


class Tensors(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Tensors that are used as they are: only the plan of the run has their size."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3, 12, 12), float(index)), index % 4


@pytest.mark.processes
def test_a_run_with_the_users_own_code_is_loaded_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_networks.py").write_text(OWN_NETWORKS)
    namespace: dict[str, Any] = {}
    exec(OWN_NETWORKS, namespace)
    own = convoy.train(
        model=namespace["make"], data=(Tensors(), Tensors()), output=tmp_path / "own", **TINY
    )
    pictures = Pictures(12), Pictures(12)
    options = TINY | {"model": "resnet8", "image_size": 12, "data": pictures}
    built_in = convoy.train(output=tmp_path / "built-in", **options)

    command = [sys.executable, "-c", LOAD_AGAIN, own, built_in, tmp_path / "out"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    unknown, other, classes = result.stdout.splitlines()
    assert "convoy.load(run, model=" in unknown and "--model package.module:function" in unknown
    assert "does not match" in other
    assert classes == str(Pictures.classes)
    with torch.no_grad():
        expected = convoy.load(own)(torch.ones(2, 3, 12, 12))
    for index in range(3):
        assert torch.equal(torch.load(tmp_path / f"out-{index}.pt"), expected)
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (20, 20)).save("photo.png")
    predicted = [sys.executable, "-m", "convoy", "predict", "built-in", "photo.png", "--json"]
    assert subprocess.run(predicted, capture_output=True).returncode == 0
