"""An update: all micro-batches, the mean gradient, one step, then the statistics."""

import pytest
import torch
import torch.nn.functional as F
from support.networks import SingleStage, build_slice, images_and_labels, small_layers
from torch import Tensor

from convoy.config.sections.training import OptimizerConfig
from convoy.engine.update import ParameterGroup, Update
from convoy.layers.norms import BatchNorm, PendingStatistics
from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import Sgd, StepContext
from convoy.parallel.executor import MicroBatchResult
from convoy.parallel.replicas import Replicas
from convoy.parallel.slice import Slice

LAYERS = small_layers()
CONFIG = OptimizerConfig(momentum=0.9, weight_decay=5e-4)


class UpdateScenario:
    """A small network with everything that an update needs."""

    def __init__(self, network: Slice | None = None, replicas: Replicas | None = None) -> None:
        self.network = network or build_slice(LAYERS)
        self.norms = [module for module in self.network.modules() if isinstance(module, BatchNorm)]
        flat = FlatParameters(self.network.named_weights())
        self.gradients = GradientTree(flat)
        self.optimizer = Optimizer(flat, Sgd(CONFIG))
        self.update = Update(
            SingleStage(self.network, F.cross_entropy, self.gradients.collect),
            [ParameterGroup(self.gradients, self.optimizer)],
            replicas or Replicas(),
            PendingStatistics(self.norms),
        )

    def tensors(self) -> dict[str, Tensor]:
        return {name: item.detach().clone() for name, item in self.network.named_tensors().items()}


def micro_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    return [images_and_labels(4, 8, seed) for seed in range(count)]


def test_every_micro_batch_has_a_result_in_order():
    scenario = UpdateScenario()
    results, _ = scenario.update(micro_batches(3), StepContext(0.0))
    expected = [
        UpdateScenario().update([batch], StepContext(0.0))[0][0] for batch in micro_batches(3)
    ]

    assert [_values(item) for item in results] == [_values(item) for item in expected]


def _values(result: MicroBatchResult) -> tuple[float, int, int]:
    return float(result.loss), int(result.correct), result.samples


def test_the_step_uses_the_mean_gradient_of_the_micro_batches():
    scenario, plain = UpdateScenario(), build_slice(LAYERS)
    scenario.update(micro_batches(4), StepContext(0.1))
    weights = plain.named_weights()
    summed = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for images, labels in micro_batches(4):
        plain.zero_grad()
        F.cross_entropy(plain(images)[0], labels).backward()
        for name, weight in weights.items():
            assert weight.grad is not None
            summed[name] += weight.grad / 4
    for name, weight in weights.items():
        decay = CONFIG.weight_decay if weight.dim() > 1 else 0.0
        expected = weight.detach() - 0.1 * (summed[name] + decay * weight.detach())

        torch.testing.assert_close(scenario.network.named_weights()[name].detach(), expected)


def test_a_rate_of_zero_changes_statistics_but_no_weight():
    scenario = UpdateScenario()
    before = scenario.tensors()
    scenario.update(micro_batches(1), StepContext(0.0))
    after = scenario.tensors()
    changed = {name for name in before if not torch.equal(before[name], after[name])}

    assert changed == {name for name in before if "running" in name}


def test_nothing_is_pending_after_an_update():
    scenario = UpdateScenario()
    scenario.update(micro_batches(3), StepContext(0.1))

    assert all(norm.pending_statistics == [] for norm in scenario.norms)
    assert all(weight.grad is None for weight in scenario.network.parameters())


def test_running_statistics_are_updated_once_per_micro_batch():
    scenario, plain = UpdateScenario(), UpdateScenario()
    scenario.update(micro_batches(3), StepContext(0.0))
    for batch in micro_batches(3):
        plain.update([batch], StepContext(0.0))

    for ours, theirs in zip(scenario.norms, plain.norms, strict=True):
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert torch.equal(ours.running_var, theirs.running_var)


def test_replicas_reduce_before_the_step():
    class TwoReplicas(Replicas):
        """A second replica whose gradients are all zero."""

        def reduce(self, tree: GradientTree) -> Tensor:
            return super().reduce(tree).div_(2)

    single, two = UpdateScenario(), UpdateScenario(replicas=TwoReplicas())
    single.update(micro_batches(1), StepContext(0.1))
    two.update(micro_batches(1), StepContext(0.2))
    bias = "fc.bias"  # no decay, so half the gradient at twice the rate is the same step

    torch.testing.assert_close(
        single.network.named_weights()[bias], two.network.named_weights()[bias]
    )


def test_the_same_updates_give_the_same_bits():
    first, second = UpdateScenario(), UpdateScenario()
    for scenario in (first, second):
        for _ in range(3):
            scenario.update(micro_batches(3), StepContext(0.1))

    assert all(
        torch.equal(first.tensors()[name], tensor) for name, tensor in second.tensors().items()
    )


def test_replicas_overlap_with_the_backward_from_the_start():
    class RecordingReplicas(Replicas):
        """Records the trees it overlaps with."""

        def __init__(self) -> None:
            self.overlapped: list[GradientTree] = []

        def overlap_with_backward(self, tree: GradientTree) -> None:
            self.overlapped.append(tree)

    replicas = RecordingReplicas()
    scenario = UpdateScenario(replicas=replicas)

    assert replicas.overlapped == [scenario.gradients]


def test_replicas_gather_the_weights_after_the_step():
    class ZeroReplicas(Replicas):
        """Other replicas whose shards are all zeros."""

        def all_gather_shards(self, values: Tensor) -> None:
            values.zero_()

    scenario = UpdateScenario(replicas=ZeroReplicas())
    scenario.update(micro_batches(1), StepContext(0.1))

    assert not any(weight.any() for weight in scenario.network.parameters())


def test_statistics_of_all_replicas_are_applied_in_order():
    class RepeatedReplicas(Replicas):
        """A second replica with the same micro-batches."""

        def all_gather_statistics(self, statistics: Tensor) -> Tensor:
            return torch.cat([statistics, statistics])

    two, plain = UpdateScenario(replicas=RepeatedReplicas()), UpdateScenario()
    two.update(micro_batches(2), StepContext(0.0))
    plain.update(micro_batches(2) * 2, StepContext(0.0))

    for ours, theirs in zip(two.norms, plain.norms, strict=True):
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert torch.equal(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("scale", [2.0**10, 2.0**-10])
def test_a_loss_scale_changes_neither_the_reported_loss_nor_the_step(scale: float) -> None:
    plain, scaled = UpdateScenario(), UpdateScenario()
    ours, _ = plain.update(micro_batches(3), StepContext(0.1))
    theirs, _ = scaled.update(micro_batches(3), StepContext(0.1, loss_scale=scale))

    assert [_values(item) for item in ours] == [_values(item) for item in theirs]
    assert all(torch.equal(plain.tensors()[name], item) for name, item in scaled.tensors().items())


def test_the_gradient_is_multiplied_by_the_loss_scale() -> None:
    seen: dict[float, Tensor] = {}

    class RecordingReplicas(Replicas):
        def reduce(self, tree: GradientTree) -> Tensor:
            gradient = super().reduce(tree)
            seen[scale] = gradient.clone()
            return gradient

    for scale in (1.0, 64.0):
        UpdateScenario(replicas=RecordingReplicas()).update(
            micro_batches(2), StepContext(0.1, loss_scale=scale)
        )

    assert torch.equal(seen[64.0], 64 * seen[1.0])


def test_an_update_that_is_not_applied_changes_nothing() -> None:
    scenario = UpdateScenario()
    scenario.update(micro_batches(2), StepContext(0.1))
    before, state = scenario.tensors(), _clone(scenario.optimizer.named_state())
    _, decision = scenario.update([*micro_batches(1), not_finite()], StepContext(0.1))
    after = scenario.optimizer.named_state()

    assert decision.stop
    assert all(torch.equal(before[name], item) for name, item in scenario.tensors().items())
    assert all(torch.equal(state[name], item) for name, item in after.items())
    assert (scenario.gradients.leaves, scenario.gradients.nodes()) == (0, [])
    assert all(norm.pending_statistics == [] for norm in scenario.norms)


def not_finite() -> tuple[Tensor, Tensor]:
    images, labels = micro_batches(1)[0]
    images[2] = torch.nan
    return images, labels


def test_the_ema_moves_only_with_updates_that_are_applied() -> None:
    scenario = UpdateScenario()
    ema = ExponentialMovingAverage(0.5, [scenario.optimizer], scenario.network.named_tensors())
    scenario.update.ema = ema
    for _ in range(2):  # the first one starts the average
        scenario.update(micro_batches(1), StepContext(0.1))
    before = _clone(ema.named_averages())
    scenario.update([not_finite()], StepContext(0.1))

    assert all(torch.equal(before[name], item) for name, item in ema.named_averages().items())
    scenario.update(micro_batches(1), StepContext(0.1))
    assert not torch.equal(before["fc.weight"], ema.named_averages()["fc.weight"])


def _clone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: item.clone() for name, item in tensors.items()}
