"""Gradient descent against torch's own, and its state as a checkpoint keeps it."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from convoy.config.sections.training import OptimizerConfig
from convoy.optim.optimizers import Sgd

SHAPES = {"conv.weight": (4, 3, 3, 3), "bn.weight": (4,), "fc.weight": (5, 4), "fc.bias": (5,)}
RATES = [0.1 * (1 - update / 25) for update in range(20)]


def noise(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weights(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    named = enumerate(SHAPES.items())
    return {name: nn.Parameter(noise(shape, seed, dtype)) for seed, (name, shape) in named}


def gradients(update: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = enumerate(SHAPES.values(), start=100 * (update + 1))
    return [noise(shape, seed, dtype) for seed, shape in shapes]


def torchs(named: Mapping[str, nn.Parameter], config: OptimizerConfig) -> torch.optim.SGD:
    """torch's own, with decay for weights of more than one dimension alone."""
    values = list(named.values())
    groups = [
        {"params": [one for one in values if one.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [one for one in values if one.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, foreach=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_twenty_updates_are_torchs_bit_for_bit(momentum: float, decay: float, dtype: torch.dtype):
    config = OptimizerConfig(momentum=momentum, weight_decay=decay)
    ours, theirs = weights(dtype), weights(dtype)
    optimizer, reference = Sgd(ours, config), torchs(theirs, config)
    for update, rate in enumerate(RATES):
        optimizer.step(gradients(update, dtype), rate)
        for weight, gradient in zip(theirs.values(), gradients(update, dtype), strict=True):
            weight.grad = gradient
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()

    assert [name for name in SHAPES if not torch.equal(ours[name], theirs[name])] == []


def test_one_update_is_the_written_formula():
    config = OptimizerConfig(momentum=0.5, weight_decay=0.1)
    weight, bias = nn.Parameter(torch.tensor([[2.0]])), nn.Parameter(torch.tensor([2.0]))
    optimizer = Sgd({"weight": weight, "bias": bias}, config)
    for _ in range(2):
        optimizer.step([torch.tensor([[1.0]]), torch.tensor([1.0])], rate=0.1)
    # weight: v = 1 + 0.1 · 2 = 1.2, w = 1.88; v = 0.6 + 1 + 0.188 = 1.788, w = 1.7012
    # bias:   v = 1, w = 1.9; v = 1.5, w = 1.75

    assert float(weight.detach()) == pytest.approx(1.7012)
    assert float(bias.detach()) == pytest.approx(1.75)


def test_a_rate_of_zero_moves_the_velocity_alone():
    named = weights()
    before = {name: weight.detach().clone() for name, weight in named.items()}
    optimizer = Sgd(named, OptimizerConfig())
    optimizer.step(gradients(0), rate=0.0)

    assert all(torch.equal(named[name], before[name]) for name in SHAPES)
    assert all(tensor.any() for tensor in optimizer.named_state().values())


def test_the_state_is_named_by_weight():
    state = Sgd(weights(), OptimizerConfig()).named_state()

    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        f"{name}/velocity": shape for name, shape in SHAPES.items()
    }


def test_without_momentum_there_is_no_state():
    optimizer = Sgd(weights(), OptimizerConfig(momentum=0))
    optimizer.step(gradients(0), rate=0.1)

    assert optimizer.named_state() == {}


def test_a_restored_optimizer_goes_on_with_the_same_bits():
    config = OptimizerConfig()
    straight = weights()
    optimizer = Sgd(straight, config)
    for update in range(3):
        optimizer.step(gradients(update), rate=0.1)
    kept = {name: tensor.clone() for name, tensor in optimizer.named_state().items()}
    resumed = {name: nn.Parameter(one.detach().clone()) for name, one in straight.items()}
    other = Sgd(resumed, config)
    other.load(kept)
    for update in range(3, 6):
        optimizer.step(gradients(update), rate=0.1)
        other.step(gradients(update), rate=0.1)

    assert all(torch.equal(straight[name], resumed[name]) for name in SHAPES)


def test_loading_copies_so_that_the_checkpoint_stays_as_it_was():
    optimizer = Sgd(weights(), OptimizerConfig())
    state = {name: torch.ones_like(one) for name, one in optimizer.named_state().items()}
    optimizer.load(state)
    optimizer.step(gradients(0), rate=0.1)

    assert all((tensor == 1).all() for tensor in state.values())


def test_the_weights_still_ask_for_gradients():
    named = weights()
    Sgd(named, OptimizerConfig()).step(gradients(0), rate=0.1)

    assert all(weight.requires_grad and weight.is_leaf for weight in named.values())
