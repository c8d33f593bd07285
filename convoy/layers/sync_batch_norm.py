"""Batch norm over a span of replicas: one mean and variance for all their micro-batches together.

What goes backward is the gradient of the sum of the replicas' losses, N times that of one
micro-batch of N-fold size; the mean over all micro-batches of an update makes the two equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from convoy.errors import NumericError

# Mean and variance of the population, (2, channels).
Statistics = Callable[[Tensor], Tensor]


def two_passes(inputs: Tensor) -> Tensor:
    """The mean first, then the squares around it; 5 to 25 times as fast as var_mean."""
    return torch.stack(torch.batch_norm_update_stats(inputs, None, None, 1.0))


def one_pass(inputs: Tensor) -> Tensor:
    """E[x²] − E[x]²: loses digits where the mean is large, as those who ask for it know."""
    pixels = [dim for dim in range(inputs.dim()) if dim != 1]
    mean = inputs.mean(pixels)
    return torch.stack([mean, (inputs.square().mean(pixels) - mean.square()).clamp_min(0)])


class StatisticsGroup(Protocol):
    """The replicas that share the statistics of a norm. All of them pass it in the same order."""

    @property
    def span(self) -> int:
        """How many there are."""

    def gather(self, part: Tensor) -> Tensor:
        """The tensors of all replicas, stacked in their order."""


class SingleReplica:
    """One replica that shares its statistics with no other."""

    span = 1

    def gather(self, part: Tensor) -> Tensor:
        return part.unsqueeze(0)


@dataclass(frozen=True, eq=False)
class SharedStatistics:
    """The statistics of one micro-batch of the whole group, for each channel."""

    own: Tensor  # (2, channels): mean and variance of our part alone
    mean: Tensor
    variance: Tensor  # of the population
    values: int  # of one channel, in the whole group
    eps: float

    @property
    def inverse_deviation(self) -> Tensor:
        return (self.variance.double() + self.eps).rsqrt()

    @property
    def unbiased(self) -> Tensor:
        """The variance as running statistics want it."""
        return self.variance * (self.values / (self.values - 1))


class SyncStatistics:
    """Measures micro-batches together with the group; remembers each until its backward."""

    def __init__(self, group: StatisticsGroup, eps: float, statistics: Statistics) -> None:
        self.group = group
        self.eps = eps
        self.statistics = statistics
        self._kept: list[SharedStatistics] = []

    @torch.no_grad()
    def measure(self, inputs: Tensor) -> SharedStatistics:
        """Gather from the group. Each replica has as many values, so means of means are exact.

        In 64 bits, and around the shared mean: a difference of large squares would lose the digits.
        """
        own = self.statistics(inputs)
        means, variances = self.group.gather(own).double().unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        values = inputs.numel() // inputs.shape[1] * self.group.span
        shared = SharedStatistics(own, mean.to(own.dtype), variance.to(own.dtype), values, self.eps)
        self._kept.append(shared)
        return shared

    @torch.no_grad()
    def recall(self, inputs: Tensor) -> SharedStatistics:
        """A micro-batch computed again is known by the bits of its own statistics.

        So nothing is gathered twice, and backwards may come in any order. Of micro-batches with the
        same bits the oldest is meant: in every schedule its backward comes first.
        """
        bits = self.statistics(inputs).view(torch.uint8)  # bits: a NaN must find itself too
        for shared in self._kept:
            if torch.equal(shared.own.view(torch.uint8), bits):
                return shared
        raise NumericError(
            f"a micro-batch computed again is none of the {len(self._kept)} that wait for their "
            "backward pass: its bits have changed; go on without --enable-recompute"
        )

    def release(self, shared: SharedStatistics) -> None:
        """Its backward pass has come."""
        self._kept = [one for one in self._kept if one is not shared]

    def clear(self) -> None:
        """No backward pass will come any more."""
        self._kept.clear()

    def normalize(
        self, inputs: Tensor, weight: Tensor, bias: Tensor, shared: SharedStatistics
    ) -> Tensor:
        """As torch's batch norm would all parts together, and backward likewise."""
        outputs: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            inputs, weight, bias, shared, self
        )
        return outputs


class _Normalize(torch.autograd.Function):
    """Torch's one kernel in two, with a gather between them."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        shared: SharedStatistics,
        statistics: SyncStatistics,
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.shared, ctx.statistics = shared, statistics
        return F.batch_norm(inputs, shared.mean, shared.variance, weight, bias, eps=shared.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upward: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors  # may compute the pass again, so it must be known still
        shared, statistics = ctx.shared, ctx.statistics
        statistics.release(shared)
        sums = _own_sums(upward, inputs, weight, shared)
        means = statistics.group.gather(sums).double().sum(0) / shared.values
        downward = _downward(upward, inputs, weight.double(), means, shared)
        # Our own sums: those of the other replicas come into the mean gradient at the update.
        return downward, sums[0], sums[1], None, None


def _own_sums(upward: Tensor, inputs: Tensor, weight: Tensor, shared: SharedStatistics) -> Tensor:
    """Sums of dy·x̂ and of dy, (2, channels): what a norm with fixed statistics has as gradients."""
    wanted = [False, True, True]
    _, slope, shift = torch.ops.aten.native_batch_norm_backward(
        upward, inputs, weight, shared.mean, shared.variance, None, None, False, shared.eps, wanted
    )
    return torch.stack([slope, shift])


def _downward(
    upward: Tensor, inputs: Tensor, weight: Tensor, means: Tensor, shared: SharedStatistics
) -> Tensor:
    """weight / deviation · (dy − x̂ · mean of dy·x̂ − mean of dy); the last two are a norm again."""
    scale = weight * shared.inverse_deviation
    slope, shift = (-scale * means).to(inputs.dtype)
    outputs = F.batch_norm(inputs, shared.mean, shared.variance, slope, shift, eps=shared.eps)
    pixels = (1,) * (inputs.dim() - 2)
    return outputs.addcmul_(upward, scale.to(inputs.dtype).view(-1, *pixels))
