"""SGD against torch, and the optimizer state in a checkpoint."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from support.small_weights import RATES, SHAPES, flattened, gradients, noise, weights
from torch import Tensor, nn

from convoy.config.sections.training import OptimizerConfig
from convoy.numerics.flat import FlatParameters
from convoy.numerics.precision import BFLOAT16, FLOAT32, DtypePolicy
from convoy.optim.optimizer import BLOCK_SIZE, Optimizer, OptimizerShard
from convoy.optim.update_rules import Sgd, StepContext


def make_optimizer(named: Mapping[str, nn.Parameter], config: OptimizerConfig) -> Optimizer:
    return Optimizer(FlatParameters(named), Sgd(config))


def torch_optimizer(named: Mapping[str, nn.Parameter], config: OptimizerConfig) -> torch.optim.SGD:
    """SGD of torch, with weight decay only for weights of several dimensions."""
    values = list(named.values())
    groups = [
        {
            "params": [value for value in values if value.dim() > 1],
            "weight_decay": config.weight_decay,
        },
        {"params": [value for value in values if value.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, foreach=True)


@pytest.mark.parametrize("dtype", [torch.float32])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_twenty_updates_match_torch_bit_for_bit(momentum: float, decay: float, dtype: torch.dtype):
    config = OptimizerConfig(momentum=momentum, weight_decay=decay)
    actual, theirs = weights(dtype), weights(dtype)
    optimizer, reference = make_optimizer(actual, config), torch_optimizer(theirs, config)
    for update, rate in enumerate(RATES):
        optimizer.step(flattened(optimizer, update), StepContext(rate))
        for weight, gradient in zip(theirs.values(), gradients(update, dtype), strict=True):
            weight.grad = gradient
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()

    assert [name for name in SHAPES if not torch.equal(actual[name], theirs[name])] == []


def test_one_update_follows_the_formula():
    config = OptimizerConfig(momentum=0.5, weight_decay=0.1)
    weight, bias = nn.Parameter(torch.tensor([[2.0]])), nn.Parameter(torch.tensor([2.0]))
    optimizer = make_optimizer({"weight": weight, "bias": bias}, config)
    for _ in range(2):
        optimizer.step(torch.ones_like(optimizer.flat_params.values), StepContext(0.1))
    # weight: v = 1 + 0.1 · 2 = 1.2, w = 1.88; v = 0.6 + 1 + 0.188 = 1.788, w = 1.7012
    # bias:   v = 1, w = 1.9; v = 1.5, w = 1.75

    assert float(weight.detach()) == pytest.approx(1.7012)
    assert float(bias.detach()) == pytest.approx(1.75)


def test_a_rate_of_zero_only_updates_the_velocity():
    named = weights()
    before = {name: weight.detach().clone() for name, weight in named.items()}
    optimizer = make_optimizer(named, OptimizerConfig())
    optimizer.step(flattened(optimizer, 0), StepContext(0.0))

    assert all(torch.equal(named[name], before[name]) for name in SHAPES)
    assert all(tensor.any() for tensor in optimizer.named_state().values())


def test_the_state_is_named_by_weight():
    state = make_optimizer(weights(), OptimizerConfig()).named_state()

    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        f"{name}/velocity": shape for name, shape in SHAPES.items()
    }


def test_without_momentum_there_is_no_state():
    optimizer = make_optimizer(weights(), OptimizerConfig(momentum=0))
    optimizer.step(flattened(optimizer, 0), StepContext(0.1))

    assert optimizer.named_state() == {}


def test_a_restored_optimizer_continues_with_the_same_bits():
    config = OptimizerConfig()
    uninterrupted = weights()
    optimizer = make_optimizer(uninterrupted, config)
    for update in range(3):
        optimizer.step(flattened(optimizer, update), StepContext(0.1))
    state = {name: tensor.clone() for name, tensor in optimizer.named_state().items()}
    resumed = {name: nn.Parameter(item.detach().clone()) for name, item in uninterrupted.items()}
    other = make_optimizer(resumed, config)
    other.load_state(state)
    for update in range(3, 6):
        optimizer.step(flattened(optimizer, update), StepContext(0.1))
        other.step(flattened(other, update), StepContext(0.1))

    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in SHAPES)


def test_loading_copies_the_checkpoint():
    optimizer = make_optimizer(weights(), OptimizerConfig())
    state = {name: torch.ones_like(item) for name, item in optimizer.named_state().items()}
    optimizer.load_state(state)
    optimizer.step(flattened(optimizer, 0), StepContext(0.1))

    assert all((tensor == 1).all() for tensor in state.values())


def test_weights_still_require_gradients():
    named = weights()
    optimizer = make_optimizer(named, OptimizerConfig())
    optimizer.step(flattened(optimizer, 0), StepContext(0.1))

    assert all(weight.requires_grad and weight.is_leaf for weight in named.values())


def ranges(elements: int, boundaries: list[int]) -> list[range]:
    ends = [0, *boundaries, elements]
    return [range(first, last) for first, last in pairwise(ends)]


@pytest.mark.parametrize("boundaries", [[16], [112, 144], [0, 0, 160], [48, 128, 160]])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_shards_have_the_bits_of_the_full_vector(boundaries: list[int], momentum: float):
    config = OptimizerConfig(momentum=momentum, weight_decay=0.05)
    full, parts = make_optimizer(weights(), config), FlatParameters(weights())
    shards = [
        Optimizer(parts, Sgd(config), OptimizerShard(shard_range))
        for shard_range in ranges(parts.numel, boundaries)
    ]
    for update in range(3):
        gradient = flattened(full, update)
        for shard in shards:
            shard.step(
                gradient[shard.shard_range.start : shard.shard_range.stop].clone(), StepContext(0.1)
            )
        full.step(gradient, StepContext(0.1))

    assert torch.equal(parts.values, full.flat_params.values)


def test_an_incomplete_last_block_matches_torch_bit_for_bit():
    large = nn.Parameter(noise((BLOCK_SIZE + 77, 2), 0, torch.float32))
    reference_weight = nn.Parameter(large.detach().clone())
    config = OptimizerConfig(momentum=0.9, weight_decay=0.05)
    optimizer, reference = (
        make_optimizer({"large": large}, config),
        torch_optimizer({"large": reference_weight}, config),
    )
    gradient = noise((BLOCK_SIZE + 77, 2), 1, torch.float32)
    optimizer.step(optimizer.flat_params.flatten({"large": gradient}), StepContext(0.1))
    reference_weight.grad = gradient
    for group in reference.param_groups:
        group["lr"] = 0.1
    reference.step()

    assert torch.equal(large, reference_weight)


def test_a_shard_loads_its_range_of_the_full_state():
    full = make_optimizer(weights(), OptimizerConfig())
    full.step(flattened(full, 0), StepContext(0.1))
    part = Optimizer(
        FlatParameters(weights()), Sgd(OptimizerConfig()), OptimizerShard(range(32, 128))
    )
    part.load_state(full.named_state())

    assert torch.equal(part.slots["velocity"], full.slots["velocity"][32:128])


def test_the_state_template_matches_the_state():
    optimizer = make_optimizer(weights(), OptimizerConfig())
    template = optimizer.state_template()

    assert {name: (item.shape, item.dtype) for name, item in template.items()} == {
        name: (item.shape, item.dtype) for name, item in optimizer.named_state().items()
    }
    assert {item.device.type for item in template.values()} == {"meta"}


def test_padding_stays_zero_during_updates():
    optimizer = make_optimizer(weights(), OptimizerConfig(weight_decay=0.1))
    for update in range(3):
        optimizer.step(flattened(optimizer, update), StepContext(0.1))
    for vector in (optimizer.flat_params.values, optimizer.slots["velocity"]):
        for view in optimizer.flat_params.views(vector):
            view.zero_()

        assert not vector.any()


class RecordingStorage:
    """A storage that counts evictions."""

    def __init__(self) -> None:
        self.evictions = 0

    def zeros(self, elements: int, like: Tensor) -> Tensor:
        return like.new_zeros(elements)

    def evict(self) -> None:
        self.evictions += 1


def test_state_is_evicted_after_every_update():
    storage = RecordingStorage()
    optimizer = Optimizer(FlatParameters(weights()), Sgd(OptimizerConfig()), storage=storage)
    for update in range(3):
        optimizer.step(flattened(optimizer, update), StepContext(0.1))

    assert storage.evictions == 3


def test_a_frozen_weight_has_state_and_does_not_change() -> None:
    named = weights()
    named["conv.weight"].requires_grad_(False)
    before = named["conv.weight"].clone()
    optimizer = make_optimizer(named, OptimizerConfig(weight_decay=0.1))
    optimizer.step(torch.ones(optimizer.flat_params.numel), StepContext(0.5))
    state = optimizer.named_state()

    assert torch.equal(named["conv.weight"], before)
    assert state.keys() == make_optimizer(weights(), OptimizerConfig()).named_state().keys()
    assert not state["conv.weight/velocity"].any() and state["fc.weight/velocity"].all()
    assert optimizer.state_template().keys() == state.keys()


def test_frozen_weights_are_loaded_and_saved_with_the_precision_of_the_checkpoint() -> None:
    named = weights()
    named["conv.weight"].requires_grad_(False)
    policy = DtypePolicy(param=FLOAT32, compute=BFLOAT16)
    optimizer = Optimizer(FlatParameters(named), Sgd(OptimizerConfig()), policy=policy)
    loaded = {name: noise(shape, seed=7) for name, shape in SHAPES.items()}
    optimizer.load_weights(loaded)
    masters = optimizer.named_master_weights()

    assert all(torch.equal(masters[name], loaded[name]) for name in SHAPES)
    assert torch.equal(named["conv.weight"], loaded["conv.weight"].bfloat16().float())


def test_state_with_frozen_weights_loads_into_an_optimizer_without() -> None:
    named = weights()
    named["conv.weight"].requires_grad_(False)
    optimizer = make_optimizer(named, OptimizerConfig())
    optimizer.step(torch.ones(optimizer.flat_params.numel), StepContext(0.5))
    full = make_optimizer(weights(), OptimizerConfig())
    full.load_state(optimizer.named_state())

    assert torch.equal(
        full.named_state()["fc.bias/velocity"], optimizer.named_state()["fc.bias/velocity"]
    )
