"""A user's copy of ResNet-8 and the built-in one train to the same bits in every layout."""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import convoy

OPTIONS: dict[str, Any] = {
    "image_size": 12,
    "samples": 32,
    "micro_batch_size": 4,
    "gradient_accumulation": 4,
    "updates": 3,
    "lr": 0.05,
    "threads": 1,
    "progress": "none",
    "validation_mode": "none",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "1 process": {},
    "2 stages": {"pipeline_splits": ["layer2/0"]},
    "2 replicas": {"replicas": 2, "gradient_accumulation": 2},
    "2 stages × 2 replicas": {
        "pipeline_splits": ["layer2/0"],
        "replicas": 2,
        "gradient_accumulation": 2,
    },
}
# The built-in network has a layer for each operation, so it can be split within blocks too.
BUILT_IN_SPLIT = "layer2/0/conv1"


class Block(nn.Module):
    """A basic block whose shortcut drops every other pixel and appends channels of zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(inputs)))))
        if self.added:
            inputs = inputs[:, :, :: self.stride, :: self.stride]
            inputs = F.pad(inputs, (0, 0, 0, 0, 0, self.added))
        return self.relu(outputs + inputs)


def make_resnet8() -> nn.Sequential:
    blocks = {
        "layer1": nn.Sequential(Block(16, 16, 1)),
        "layer2": nn.Sequential(Block(16, 32, 2)),
        "layer3": nn.Sequential(Block(32, 64, 2)),
    }
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu=nn.ReLU(inplace=True),
            **blocks,
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(64, 10),
        )
    )


def weights(run: convoy.Run) -> dict[str, Tensor]:
    state = convoy.load(run, model=_network_of(run), fold_batch_norm=False).state_dict()
    return {
        name.removeprefix("network.layers.").replace("/", "."): tensor
        for name, tensor in state.items()
    }


def _network_of(run: convoy.Run) -> nn.Module | None:
    return None if run.config["model"] == "resnet8" else make_resnet8()


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> convoy.Run:
    output = tmp_path_factory.mktemp("built-in") / "run"
    return convoy.train(model="resnet8", output=output, **OPTIONS)


@pytest.fixture(scope="module")
def initial_weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tensor]:
    """Those of the built-in network: a run without a learning rate does not change them."""
    output = tmp_path_factory.mktemp("initial") / "run"
    options = OPTIONS | {"lr": 0.0, "weight_decay": 0.0, "updates": 1}
    return weights(convoy.train(model="resnet8", output=output, **options))


@pytest.mark.processes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_of_resnet8_trains_to_the_bits_of_the_built_in_network(
    tmp_path: Path,
    built_in: convoy.Run,
    initial_weights: Mapping[str, Tensor],
    layout: str,
) -> None:
    network = make_resnet8()
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(initial_weights[name])

    run = convoy.train(model=network, output=tmp_path / "run", **OPTIONS | LAYOUTS[layout])

    assert (
        run.summary.layout
        == {
            "1 process": "1 replica × 1 stage",
            "2 stages": "1 replica × 2 stages",
            "2 replicas": "2 replicas × 1 stage",
            "2 stages × 2 replicas": "2 replicas × 2 stages",
        }[layout]
    )
    expected, trained = weights(built_in), weights(run)
    assert trained.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(trained[name], expected[name])] == []
    assert run.summary.weights_sha256 == built_in.summary.weights_sha256
    assert not torch.equal(trained["conv1.weight"], initial_weights["conv1.weight"])


@pytest.mark.processes
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "1 process"])
def test_the_built_in_network_has_the_same_bits_in_every_layout(
    tmp_path: Path, built_in: convoy.Run, layout: str
) -> None:
    options = OPTIONS | LAYOUTS[layout]
    if "pipeline_splits" in options:
        options["pipeline_splits"] = [BUILT_IN_SPLIT]
    run = convoy.train(model="resnet8", output=tmp_path / "run", **options)

    assert run.summary.weights_sha256 == built_in.summary.weights_sha256
