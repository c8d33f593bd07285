"""One update: all micro-batches, the mean gradient, one step, then the statistics."""

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
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import Sgd, StepContext
from convoy.parallel.executor import MicroBatchResult
from convoy.parallel.replicas import Replicas
from convoy.parallel.slice import Slice

LAYERS = small_layers()
CONFIG = OptimizerConfig(momentum=0.9, weight_decay=5e-4)


class Live:
    """The pieces of an update around one small network."""

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
    live = Live()
    passed, _ = live.update(micro_batches(3), StepContext(0.0))
    alone = [Live().update([batch], StepContext(0.0))[0][0] for batch in micro_batches(3)]

    assert [_numbers(item) for item in passed] == [_numbers(item) for item in alone]


def _numbers(passed: MicroBatchResult) -> tuple[float, int, int]:
    return float(passed.loss), int(passed.correct), passed.samples


def test_the_step_uses_the_mean_gradient_of_the_micro_batches():
    live, plain = Live(), build_slice(LAYERS)
    live.update(micro_batches(4), StepContext(0.1))
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
        moved = weight.detach() - 0.1 * (summed[name] + decay * weight.detach())

        torch.testing.assert_close(live.network.named_weights()[name].detach(), moved)


def test_a_rate_of_zero_changes_statistics_but_no_weight():
    live = Live()
    before = live.tensors()
    live.update(micro_batches(1), StepContext(0.0))
    after = live.tensors()
    changed = {name for name in before if not torch.equal(before[name], after[name])}

    assert changed == {name for name in before if "running" in name}


def test_nothing_is_pending_after_an_update():
    live = Live()
    live.update(micro_batches(3), StepContext(0.1))

    assert all(norm.pending_statistics == [] for norm in live.norms)
    assert all(weight.grad is None for weight in live.network.parameters())


def test_running_statistics_are_updated_once_per_micro_batch():
    live, plain = Live(), Live()
    live.update(micro_batches(3), StepContext(0.0))
    for batch in micro_batches(3):
        plain.update([batch], StepContext(0.0))

    for ours, theirs in zip(live.norms, plain.norms, strict=True):
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert torch.equal(ours.running_var, theirs.running_var)


def test_replicas_reduce_before_the_step():
    class Halving(Replicas):
        """A second replica whose gradients are all zero."""

        def reduce(self, tree: GradientTree) -> Tensor:
            return super().reduce(tree).div_(2)

    alone, two = Live(), Live(replicas=Halving())
    alone.update(micro_batches(1), StepContext(0.1))
    two.update(micro_batches(1), StepContext(0.2))
    bias = "fc.bias"  # no decay, so half the gradient at twice the rate is the same step

    torch.testing.assert_close(
        alone.network.named_weights()[bias], two.network.named_weights()[bias]
    )


def test_the_same_updates_give_the_same_bits():
    item, other = Live(), Live()
    for live in (item, other):
        for _ in range(3):
            live.update(micro_batches(3), StepContext(0.1))

    assert all(
        torch.equal(item.tensors()[name], tensor) for name, tensor in other.tensors().items()
    )


def test_replicas_overlap_with_the_backward_from_the_start():
    class Following(Replicas):
        """Remembers whom it follows."""

        def __init__(self) -> None:
            self.followed: list[GradientTree] = []

        def overlap_with_backward(self, tree: GradientTree) -> None:
            self.followed.append(tree)

    replicas = Following()
    live = Live(replicas=replicas)

    assert replicas.followed == [live.gradients]


def test_replicas_gather_the_weights_after_the_step():
    class Zeroing(Replicas):
        """Others whose share of the weights is all zeros."""

        def all_gather_shards(self, values: Tensor) -> None:
            values.zero_()

    live = Live(replicas=Zeroing())
    live.update(micro_batches(1), StepContext(0.1))

    assert not any(weight.any() for weight in live.network.parameters())


def test_statistics_of_all_replicas_are_applied_in_order():
    class Doubled(Replicas):
        """A second replica that saw the same micro-batches again."""

        def all_gather_statistics(self, statistics: Tensor) -> Tensor:
            return torch.cat([statistics, statistics])

    two, plain = Live(replicas=Doubled()), Live()
    two.update(micro_batches(2), StepContext(0.0))
    plain.update(micro_batches(2) * 2, StepContext(0.0))

    for ours, theirs in zip(two.norms, plain.norms, strict=True):
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert torch.equal(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("scale", [2.0**10, 2.0**-10])
def test_a_loss_scale_changes_neither_the_reported_loss_nor_the_step(scale: float) -> None:
    plain, scaled = Live(), Live()
    ours, _ = plain.update(micro_batches(3), StepContext(0.1))
    theirs, _ = scaled.update(micro_batches(3), StepContext(0.1, loss_scale=scale))

    assert [_numbers(our) for our in ours] == [_numbers(their) for their in theirs]
    assert all(torch.equal(plain.tensors()[name], item) for name, item in scaled.tensors().items())


def test_the_gradient_is_multiplied_by_the_loss_scale() -> None:
    seen: dict[float, Tensor] = {}

    class Seeing(Replicas):
        def reduce(self, tree: GradientTree) -> Tensor:
            found = super().reduce(tree)
            seen[scale] = found.clone()
            return found

    for scale in (1.0, 64.0):
        Live(replicas=Seeing()).update(micro_batches(2), StepContext(0.1, loss_scale=scale))

    assert torch.equal(seen[64.0], 64 * seen[1.0])


def test_an_update_that_is_not_applied_changes_nothing() -> None:
    live = Live()
    live.update(micro_batches(2), StepContext(0.1))
    before, state = live.tensors(), _copied(live.optimizer.named_state())
    images, labels = micro_batches(1)[0]
    images[2] = torch.nan
    _, decision = live.update([*micro_batches(1), (images, labels)], StepContext(0.1))
    after = live.optimizer.named_state()

    assert decision.stop
    assert all(torch.equal(before[name], item) for name, item in live.tensors().items())
    assert all(torch.equal(state[name], item) for name, item in after.items())
    assert (live.gradients.leaves, live.gradients.nodes()) == (0, [])
    assert all(norm.pending_statistics == [] for norm in live.norms)


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: item.clone() for name, item in tensors.items()}
