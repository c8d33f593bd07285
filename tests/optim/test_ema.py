"""The EMA of weights and statistics: against float64, sharded, saved and loaded."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from convoy.config.sections.training import OptimizerConfig
from convoy.numerics.flat import FlatParameters
from convoy.numerics.precision import BFLOAT16, FLOAT32, DtypePolicy
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import BLOCK_SIZE, Optimizer, OptimizerShard
from convoy.optim.update_rules import Sgd, StepContext

SHAPES = {"conv.weight": (9, 7, 3, 3), "bn.weight": (9,), "fc.weight": (5, 9), "fc.bias": (5,)}


def weights() -> dict[str, nn.Parameter]:
    return {
        name: nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
        for seed, (name, shape) in enumerate(SHAPES.items())
    }


def optimizer_of(
    named: dict[str, nn.Parameter],
    shard_range: range | None = None,
    policy: DtypePolicy | None = None,
) -> Optimizer:
    rule = Sgd(OptimizerConfig(momentum=0.9, weight_decay=0.0))
    shard = None if shard_range is None else OptimizerShard(shard_range)
    return Optimizer(FlatParameters(named), rule, shard, policy=policy)


def step(optimizer: Optimizer, update: int) -> None:
    gradient = torch.randn(
        optimizer.flat_params.numel, generator=torch.Generator().manual_seed(update)
    )
    shard_range = optimizer.shard_range
    optimizer.step(gradient[shard_range.start : shard_range.stop].clone(), StepContext(0.1))


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
def test_fifty_updates_follow_the_formula(decay: float):
    named, statistic = weights(), torch.zeros(9)
    optimizer = optimizer_of(named)
    average = ExponentialMovingAverage(decay, [optimizer], {"bn.running_mean": statistic})
    expected: dict[str, np.ndarray] = {}
    for update in range(50):
        step(optimizer, update)
        statistic.add_(update)
        average.update()
        tensors = {**named, "bn.running_mean": statistic}
        for name, item in tensors.items():
            current = item.detach().double().numpy()
            before = expected.get(name)
            expected[name] = current if before is None else decay * before + (1 - decay) * current
    actual = average.named_averages()

    assert actual.keys() == expected.keys()
    for name, item in actual.items():
        np.testing.assert_allclose(item.double().numpy(), expected[name], rtol=2e-6, atol=2e-6)


def test_the_average_starts_as_the_weights_after_the_first_update():
    named = weights()
    optimizer = optimizer_of(named)
    average = ExponentialMovingAverage(0.99, [optimizer], {})

    assert not average.started
    step(optimizer, 0)
    average.update()
    assert average.started
    assert all(torch.equal(item, named[name]) for name, item in average.named_averages().items())


def test_the_average_of_constant_weights_is_bit_identical_to_them():
    named = weights()
    optimizer = optimizer_of(named)
    average = ExponentialMovingAverage(0.9999, [optimizer], {})
    for _ in range(100):
        average.update()

    assert all(torch.equal(item, named[name]) for name, item in average.named_averages().items())


def test_a_decay_close_to_one_is_not_biased():
    optimizer = optimizer_of({"w": nn.Parameter(torch.zeros(1, 4))})
    average = ExponentialMovingAverage(0.9999, [optimizer], {})
    average.update()
    optimizer.flat_params.values.fill_(1.0)
    for _ in range(20_000):
        average.update()
    # Separate rounding of 0.9999 and 0.0001 to fp32 would cause an error of 3e-4.
    expected = 1 - 0.9999**20_000

    assert float(average.named_averages()["w"][0, 0]) == pytest.approx(expected, abs=5e-5)


def test_shards_of_any_size_have_the_same_bits():
    full_optimizer = optimizer_of(weights())
    full_average = ExponentialMovingAverage(0.97, [full_optimizer], {})
    elements = full_optimizer.flat_params.numel
    boundaries = [0, 16, 16 * 13, elements]
    shards = [optimizer_of(weights(), range(first, last)) for first, last in pairwise(boundaries)]
    averages = [ExponentialMovingAverage(0.97, [shard], {}) for shard in shards]
    for update in range(10):
        for optimizer, average in zip(
            [full_optimizer, *shards], [full_average, *averages], strict=True
        ):
            step(optimizer, update)
            average.update()
    joined = torch.cat([item._weights[0] for item in averages])

    assert torch.equal(joined, full_average._weights[0])


def test_a_shard_restores_its_part_of_the_average():
    optimizer = optimizer_of(weights())
    average = ExponentialMovingAverage(0.97, [optimizer], {})
    average.update()
    shard = range(16 * 13, optimizer.flat_params.numel)
    restored = ExponentialMovingAverage(0.97, [optimizer_of(weights(), shard)], {})
    restored.load_averages(average.named_averages())

    assert torch.equal(restored._weights[0], average._weights[0][shard.start :])


def test_a_vector_of_several_blocks_is_averaged_completely():
    optimizer = optimizer_of({"w": nn.Parameter(torch.zeros(3, BLOCK_SIZE))})
    average = ExponentialMovingAverage(0.5, [optimizer], {})
    average.update()
    optimizer.flat_params.values.fill_(2.0)
    average.update()

    assert bool((average.named_averages()["w"] == 1.0).all())


def test_master_weights_are_averaged():
    policy = DtypePolicy(param=FLOAT32, compute=BFLOAT16)
    optimizer = optimizer_of(weights(), policy=policy)
    average = ExponentialMovingAverage(0.9, [optimizer], {})
    step(optimizer, 0)
    average.update()
    actual = average.named_averages()["fc.weight"]
    used = optimizer.flat_params.named_views(optimizer.flat_params.values)["fc.weight"]

    assert torch.equal(actual, optimizer.named_master_weights()["fc.weight"])
    assert not torch.equal(actual, used)


def test_frozen_weights_keep_the_precision_of_their_master_copies():
    named = weights()
    frozen = named["conv.weight"].requires_grad_(False)
    exact = frozen.detach().clone()
    optimizer = optimizer_of(named, policy=DtypePolicy(param=FLOAT32, compute=BFLOAT16))
    average = ExponentialMovingAverage(0.9, [optimizer], {"conv.weight": frozen})
    for update in range(3):
        step(optimizer, update)
        average.update()

    assert not torch.equal(frozen, exact)  # rounded
    assert torch.equal(average.named_averages()["conv.weight"], exact)


def test_a_restored_average_continues_with_the_same_bits():
    optimizer, other = optimizer_of(weights()), optimizer_of(weights())
    statistic = torch.ones(9)
    average = ExponentialMovingAverage(0.9, [optimizer], {"s": statistic})
    for update in range(3):
        step(optimizer, update)
        average.update()
    saved = {name: item.clone() for name, item in average.named_averages().items()}
    resumed = ExponentialMovingAverage(0.9, [other], {"s": statistic})
    resumed.load_averages(saved)
    other.flat_params.values.copy_(optimizer.flat_params.values)
    for item in (average, resumed):
        statistic.fill_(3.0)
        item.update()
    pairs = zip(average.named_averages().values(), resumed.named_averages().values(), strict=True)

    assert all(torch.equal(item, other) for item, other in pairs)


def test_without_a_saved_average_the_next_update_starts_it():
    optimizer = optimizer_of(weights())
    average = ExponentialMovingAverage(0.9, [optimizer], {})
    average.update()
    average.load_averages({})

    assert not average.started
