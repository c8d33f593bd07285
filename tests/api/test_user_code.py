"""Users' own networks and datasets: the same bits in every layout, and clear refusals."""

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.run_convoy import convoy as run_command
from torch import Tensor, nn

import convoy
from convoy.errors import ConfigError, DataError

TINY: dict[str, Any] = {
    "image_size": 12,
    "samples": 64,
    "micro_batch_size": 4,
    "gradient_accumulation": 8,
    "epochs": 1,
    "lr": 0.02,
    "threads": 1,
    "progress": "none",
}
LAYOUTS: list[dict[str, Any]] = [
    {"shards": 2},
    {"replicas": 2, "gradient_accumulation": 4},
    {"shards": 2, "replicas": 2, "gradient_accumulation": 4, "enable_recompute": True},
]


class Block(nn.Module):
    """A residual block with a layer of each kind that convoy replaces."""

    def __init__(self, channels: int, stride: int = 1, inputs: int | None = None) -> None:
        super().__init__()
        inputs = inputs or channels
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(0.1)
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.relu(self.dropout(self.bn1(self.conv1(inputs))) + self.shortcut(inputs))


def make_network(num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Block(8),
        nn.Sequential(Block(16, 2, inputs=8), Block(16)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_classes),
    )


class NoisyImages(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Float tensors with noise from torch's global generator, as random transforms draw it."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(3, 12, 12) + index % 4, index % 4


class Pictures(torch.utils.data.Dataset[tuple[Image.Image, int]]):
    """PIL images of different sizes."""

    classes = ("dark", "bright")

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        pixels = np.full((20 + index % 3, 24, 3), 50 + 150 * (index % 2), np.uint8)
        return Image.fromarray(pixels), index % 2


@pytest.mark.processes
def test_a_network_of_the_user_has_the_same_weights_in_every_layout(tmp_path: Path) -> None:
    single = convoy.train(model=make_network, output=tmp_path / "single", **TINY)

    for number, layout in enumerate(LAYOUTS):
        options = TINY | layout
        run = convoy.train(model=make_network, output=tmp_path / str(number), **options)
        assert run.summary.weights_sha256 == single.summary.weights_sha256, layout


@pytest.mark.processes
@pytest.mark.parametrize("make_data", [NoisyImages, Pictures], ids=["tensors", "pictures"])
def test_a_dataset_of_the_user_is_the_same_with_replicas_and_after_a_resume(
    tmp_path: Path, make_data: Callable[[int], Any]
) -> None:
    data = (make_data(64), make_data(16))
    options = TINY | {"gradient_accumulation": 2, "model": make_network, "data": data}
    del options["samples"]
    options |= {"image_size": None} if make_data is NoisyImages else {}
    single = convoy.train(output=tmp_path / "single", **options)
    layout = {"replicas": 2, "gradient_accumulation": 1}
    replicas = convoy.train(output=tmp_path / "replicas", **{**options, **layout})
    stopped = convoy.train(output=tmp_path / "stopped", stop_after=3, **options)
    resumed = convoy.resume(stopped, model=make_network, data=data)

    assert single.summary.weights_sha256 == replicas.summary.weights_sha256
    assert single.summary.weights_sha256 == resumed.summary.weights_sha256


def test_the_order_of_a_mapping_is_the_order_of_the_layers(tmp_path: Path) -> None:
    layers = OrderedDict(
        stem=nn.Conv2d(3, 4, 3),
        pool=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        head=nn.Linear(4, 10),
    )
    run = convoy.train(
        model=layers, output=tmp_path / "run", fine_tune_first_trainable_layer="head", **TINY
    )

    names = convoy.load(run, fold_batch_norm=False).state_dict()
    trained = {name.removeprefix("network.layers."): value for name, value in names.items()}
    assert torch.equal(trained["stem.weight"], layers["stem"].weight)  # frozen
    assert not torch.equal(trained["head.weight"], layers["head"].weight)


@pytest.mark.parametrize("inplace", [False, True])
def test_an_activation_that_is_used_twice_is_applied_twice(tmp_path: Path, inplace: bool) -> None:
    def make(activations: list[nn.Module]) -> nn.Sequential:
        torch.manual_seed(0)
        convolutions = [nn.Conv2d(inputs, 4, 3, padding=1) for inputs in (3, 4, 4)]
        pairs = zip(convolutions, activations, strict=True)
        layers = [layer for pair in pairs for layer in pair]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    separate = convoy.train(
        model=make([nn.ReLU(inplace) for _ in range(3)]), output=tmp_path / "own", **TINY
    )
    shared = convoy.train(
        model=make([nn.ReLU(inplace)] * 3), output=tmp_path / "shared", shards=2, **TINY
    )

    assert shared.summary.weights_sha256 == separate.summary.weights_sha256


class WithLayers(nn.Module):
    """A module that says where it can be split."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def pipeline_layers(self) -> dict[str, nn.Module]:
        return {"body": self.body, "head": self.head}


def test_a_module_may_list_its_layers(tmp_path: Path) -> None:
    run = convoy.train(model=WithLayers(), output=tmp_path / "run", shards=2, **TINY)

    assert run.summary.layout == "1 replica × 2 stages"


class Stateful(nn.Module):
    """Changes a buffer in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1  # type: ignore[operator]
        return inputs


class Noisy(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.randn_like(inputs)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def head(*layers: nn.Module, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


class TwoNames(nn.Module):
    """Uses one layer twice, under two names."""

    def __init__(self, layer: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.first, self.second = layer, other

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs))
        return outputs


@pytest.mark.processes
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)])
def test_a_layer_with_two_names_is_one_layer(tmp_path: Path, layer: nn.Module) -> None:
    model = head(nn.Conv2d(3, 3, 1), TwoNames(*[layer] * 2))

    single = convoy.train(model=model, output=tmp_path / "single", **TINY)
    several = convoy.train(
        model=model, output=tmp_path / "several", **TINY | {"shards": 2, "enable_recompute": True}
    )

    assert several.summary.weights_sha256 == single.summary.weights_sha256


def shared_layers() -> dict[str, nn.Module]:
    conv = nn.Conv2d(3, 3, 1)
    return {"a": conv, "b": nn.Sequential(conv, nn.ReLU()), "c": head()}


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (head(nn.Dropout2d(0.1)), ["layer 0", "Dropout2d"]),
        (head(nn.BatchNorm2d(3, momentum=None)), ["layer 0", "momentum"]),
        (head(Stateful()), ["layer 0", "seen"]),
        (head(Noisy()), ["layer 0", "random"]),
        (head(Function(lambda x: F.dropout(x, 1e-6))), ["layer 0", "random"]),
        (head(nn.LazyConv2d(3, 1)), ["lazy"]),
        (head(nn.LazyBatchNorm2d()), ["lazy"]),
        (head().double(), ["2/weight", "float64", "float32"]),
        (head(Function(Tensor.double)), ["layer 0", "float64"]),
        (head().requires_grad_(False), ["no parameters"]),
        ({"a.b": nn.Identity(), "a/b": nn.Identity(), "c": head()}, ["'a/b'"]),
        ({"": head()[0]}, ["''"]),
        (5, ["int", "torch.nn.Module"]),
        ([nn.Identity()], ["list", "torch.nn.Module"]),
        (lambda classes, depth: (classes, depth), ["num_classes", "classes"]),
        (head(Unused()), ["layer 0", "extra.weight"]),
        (head(nn.Conv2d(5, 3, 1)), ["layer 0", "(2, 3, 12, 12)"]),
        (head(classes=7), ["(N, 7)", "10 classes"]),
        (nn.Sequential(), ["no layers"]),
        (shared_layers, ["a and b", "share"]),
        (lambda: 3, ["int", "torch.nn.Module"]),
    ],
)
def test_a_network_that_cannot_be_exact_is_refused_by_name(model: Any, facts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        convoy.train(model=model, **TINY)

    assert all(fact in str(error.value) for fact in facts), str(error.value)


class Broken(NoisyImages):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 5:
            raise OSError("disk on fire")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        ((NoisyImages(64),), ["pair"]),
        ((NoisyImages(0), NoisyImages(8)), ["train split", "empty"]),
        ((Broken(64), NoisyImages(8)), ["item 5", "disk on fire"]),
    ],
)
def test_a_wrong_dataset_is_refused_with_its_facts(data: Any, facts: list[str]) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        convoy.train(model=make_network, data=data, progress="none")

    assert all(fact in str(error.value) for fact in facts), str(error.value)


MODULE = """
from torch import nn
def make(num_classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4, num_classes))
"""


@pytest.mark.processes
def test_the_command_line_imports_a_network_and_asks_for_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_networks.py").write_text(MODULE)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    model = "--model=my_networks:make"

    trained = run_command("train", model, *words, "--shards=2", "--output=run", "--stop-after=1")
    assert trained.code == 75, trained.err
    # The configuration of a run may come from somebody else, so it imports nothing by itself.
    fresh = [sys.executable, "-m", "convoy", "resume", "run"]
    without = subprocess.run(fresh, capture_output=True, text=True)
    confirmed = subprocess.run([*fresh, model], capture_output=True, text=True)

    assert without.returncode == 2 and "my_networks:make" in without.stderr
    assert confirmed.returncode == 0, confirmed.stderr


@pytest.mark.parametrize("name", ["no_such_module:make", "os:no_such_function", "os:name"])
def test_a_name_that_cannot_be_imported_is_refused(name: str) -> None:
    result = run_command("train", f"--model={name}")

    assert result.code == 2 and name in result.err
