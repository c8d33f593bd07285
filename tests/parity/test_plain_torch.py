"""Five updates against a hand-written training loop with the modules of torch."""

import pytest
import torch
import torch.nn.functional as F
from support.networks import CLASSES, SingleStage, build_slice, images_and_labels, small_layers
from torch import Tensor, nn

from convoy.config.sections.training import LossConfig, OptimizerConfig
from convoy.engine.update import CrossEntropy, ParameterGroup, Update
from convoy.layers.norms import BatchNorm, PendingStatistics
from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import Sgd, StepContext
from convoy.parallel.replicas import Replicas
from convoy.parallel.slice import Slice

RATES = [0.02, 0.1, 0.08, 0.05, 0.01]
OPTIMIZER = OptimizerConfig(momentum=0.9, weight_decay=5e-4)
SMOOTHING = 0.1
LAYERS = small_layers()


class Block(nn.Module):
    """Two convolutions and a shortcut that pads with zero channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        output = F.relu(self.bn1(self.conv1(x)))
        output = self.bn2(self.conv2(output))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(output + F.pad(shortcut, (0, 0, 0, 0, 0, self.added)))


class ResNet8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2))
        self.layer3 = nn.Sequential(Block(32, 64, 2))
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


def batches(accumulated: int) -> list[list[tuple[Tensor, Tensor]]]:
    """The micro-batches of five updates."""
    return [
        [images_and_labels(8, 12, seed=10 * update + micro) for micro in range(accumulated)]
        for update in range(len(RATES))
    ]


def train_ours(network: Slice, accumulated: int) -> list[float]:
    """Train the network in place and return the losses of all micro-batches."""
    flat = FlatParameters(network.named_weights())
    gradients = GradientTree(flat)
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    loss = CrossEntropy(LossConfig(label_smoothing=SMOOTHING))
    update = Update(
        SingleStage(network, loss, gradients.collect),
        [ParameterGroup(gradients, Optimizer(flat, Sgd(OPTIMIZER)))],
        Replicas(),
        PendingStatistics(norms),
    )
    results = [
        item
        for rate, batch in zip(RATES, batches(accumulated), strict=True)
        for item in update(batch, StepContext(rate))[0]
    ]
    return [float(item.loss) for item in results]


def train_plain_torch(network: ResNet8, accumulated: int) -> list[float]:
    """A plain training loop with torch.optim.SGD."""
    decaying = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in network.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.SGD(
        [{"params": decaying, "weight_decay": OPTIMIZER.weight_decay}, {"params": others}],
        momentum=OPTIMIZER.momentum,
    )
    losses = []
    for rate, batch in zip(RATES, batches(accumulated), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        for images, labels in batch:
            loss = F.cross_entropy(network(images), labels, label_smoothing=SMOOTHING)
            (loss / accumulated).backward()
            losses.append(float(loss.detach()))
        optimizer.step()
    return losses


@pytest.mark.parametrize("accumulated", [1, 3])
def test_five_updates_equal_a_plain_loop(accumulated: int):
    ours, plain = build_slice(LAYERS, seed=5), ResNet8()
    plain.load_state_dict(ours.named_tensors(), strict=False)  # without num_batches_tracked
    losses = train_ours(ours, accumulated)
    expected = train_plain_torch(plain, accumulated)
    theirs = plain.state_dict()
    counts = {name for name in theirs if name.endswith("num_batches_tracked")}

    assert losses == pytest.approx(expected, rel=1e-6)
    assert ours.named_tensors().keys() == theirs.keys() - counts
    for name, tensor in ours.named_tensors().items():
        torch.testing.assert_close(tensor.detach(), theirs[name], rtol=1e-6, atol=1e-6, msg=name)


def test_the_updates_change_every_tensor():
    network = build_slice(LAYERS, seed=5)
    before = {name: tensor.detach().clone() for name, tensor in network.named_tensors().items()}
    train_ours(network, 1)
    changes = {
        name: float((tensor.detach() - before[name]).abs().max())
        for name, tensor in network.named_tensors().items()
    }

    assert min(changes.values()) > 1e-4


def test_evaluation_matches_plain_torch():
    ours, plain = build_slice(LAYERS, seed=5), ResNet8()
    train_ours(ours, 1)
    plain.load_state_dict(ours.named_tensors(), strict=False)
    images, _ = images_and_labels(8, 12, seed=99)
    ours.eval()
    plain.eval()

    torch.testing.assert_close(ours(images)[0], plain(images), rtol=1e-6, atol=1e-6)
