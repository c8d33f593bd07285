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


def two_passes(given: Tensor) -> Tensor:
    """The mean first, then the squares around it; 5 to 25 times as fast as var_mean."""
    return torch.stack(torch.batch_norm_update_stats(given, None, None, 1.0))


def one_pass(given: Tensor) -> Tensor:
    """E[x²] − E[x]²: loses digits where the mean is large, as those who ask for it know."""
    pixels = [dim for dim in range(given.dim()) if dim != 1]
    mean = given.mean(pixels)
    return torch.stack([mean, (given.square().mean(pixels) - mean.square()).clamp_min(0)])


class Partners(Protocol):
    """The replicas that share the statistics of a norm. All of them pass it in the same order."""

    @property
    def span(self) -> int:
        """How many there are."""

    def gather(self, part: Tensor) -> Tensor:
        """Everybody's tensor of this shape, stacked in the order of the replicas."""


class Nobody:
    """The partners of a replica that keeps its statistics to itself."""

    span = 1

    def gather(self, part: Tensor) -> Tensor:
        return part.unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Joint:
    """The statistics of one joint micro-batch, for each channel."""

    own: Tensor  # (2, channels): mean and variance of our part alone
    mean: Tensor
    variance: Tensor  # of the population
    values: int  # of one channel, all partners together
    eps: float

    @property
    def inverse_deviation(self) -> Tensor:
        return (self.variance.double() + self.eps).rsqrt()

    @property
    def unbiased(self) -> Tensor:
        """The variance as running statistics want it."""
        return self.variance * (self.values / (self.values - 1))


class JointStatistics:
    """Measures micro-batches together with the partners; remembers each until its backward."""

    def __init__(self, partners: Partners, eps: float, statistics: Statistics) -> None:
        self.partners = partners
        self.eps = eps
        self.statistics = statistics
        self._kept: list[Joint] = []

    @torch.no_grad()
    def measure(self, given: Tensor) -> Joint:
        """Meet the partners. Each has as many values, so the means of all are those of the whole.

        In 64 bits, and around the joint mean: a difference of large squares would lose the digits.
        """
        own = self.statistics(given)
        means, variances = self.partners.gather(own).double().unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        values = given.numel() // given.shape[1] * self.partners.span
        joint = Joint(own, mean.to(own.dtype), variance.to(own.dtype), values, self.eps)
        self._kept.append(joint)
        return joint

    @torch.no_grad()
    def recall(self, given: Tensor) -> Joint:
        """A micro-batch computed again is known by the bits of its own statistics.

        So nobody is met a second time, and backwards may come in any order. Of micro-batches with
        the same bits the oldest is meant: in every schedule its backward comes first.
        """
        bits = self.statistics(given).view(torch.uint8)  # bits: a NaN must find itself too
        for joint in self._kept:
            if torch.equal(joint.own.view(torch.uint8), bits):
                return joint
        raise NumericError(
            f"a micro-batch computed again is none of the {len(self._kept)} that wait for their "
            "backward pass: its bits have changed; go on without --enable-recompute"
        )

    def release(self, joint: Joint) -> None:
        """Its backward pass has come."""
        self._kept = [one for one in self._kept if one is not joint]

    def clear(self) -> None:
        """No backward pass will come any more."""
        self._kept.clear()

    def normalize(self, given: Tensor, weight: Tensor, bias: Tensor, joint: Joint) -> Tensor:
        """As torch's batch norm would all parts together, and backward likewise."""
        made: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            given, weight, bias, joint, self
        )
        return made


class _Normalize(torch.autograd.Function):
    """Between the two kernels of a pass, where torch has one, the partners meet."""

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        weight: Tensor,
        bias: Tensor,
        joint: Joint,
        statistics: JointStatistics,
    ) -> Tensor:
        ctx.save_for_backward(given, weight)
        ctx.joint, ctx.statistics = joint, statistics
        return F.batch_norm(given, joint.mean, joint.variance, weight, bias, eps=joint.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upward: Tensor) -> tuple[Tensor | None, ...]:
        given, weight = ctx.saved_tensors  # may compute the pass again, so it must be known still
        joint, statistics = ctx.joint, ctx.statistics
        statistics.release(joint)
        sums = _own_sums(upward, given, weight, joint)
        means = statistics.partners.gather(sums).double().sum(0) / joint.values
        downward = _downward(upward, given, weight.double(), means, joint)
        # Our own sums: those of the other replicas come into the mean gradient at the update.
        return downward, sums[0], sums[1], None, None


def _own_sums(upward: Tensor, given: Tensor, weight: Tensor, joint: Joint) -> Tensor:
    """Sums of dy·x̂ and of dy, (2, channels): what a norm with fixed statistics has as gradients."""
    wanted = [False, True, True]
    _, slope, shift = torch.ops.aten.native_batch_norm_backward(
        upward, given, weight, joint.mean, joint.variance, None, None, False, joint.eps, wanted
    )
    return torch.stack([slope, shift])


def _downward(upward: Tensor, given: Tensor, weight: Tensor, means: Tensor, joint: Joint) -> Tensor:
    """weight / deviation · (dy − x̂ · mean of dy·x̂ − mean of dy); the last two are a norm again."""
    scale = weight * joint.inverse_deviation
    slope, shift = (-scale * means).to(given.dtype)
    made = F.batch_norm(given, joint.mean, joint.variance, slope, shift, eps=joint.eps)
    pixels = (1,) * (given.dim() - 2)
    return made.addcmul_(upward, scale.to(given.dtype).view(-1, *pixels))
