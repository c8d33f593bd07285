"""Batch norm, whose running statistics wait for the update and may be those of several replicas,
and group norm, in one pass or two. Batch norm can be folded into the convolution before it.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from convoy.errors import NumericError
from convoy.layers.modules import one_way
from convoy.models.layers import LayerPlan, NormSpec, Route

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
        self.kept: list[SharedStatistics] = []

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
        self.kept.append(shared)
        return shared

    @torch.no_grad()
    def recall(self, inputs: Tensor) -> SharedStatistics:
        """A micro-batch computed again is known by the bits of its own statistics.

        So nothing is gathered twice, and backwards may come in any order. Of micro-batches with the
        same bits the oldest is meant: in every schedule its backward comes first.
        """
        bits = self.statistics(inputs).view(torch.uint8)  # bits: a NaN must find itself too
        for shared in self.kept:
            if torch.equal(shared.own.view(torch.uint8), bits):
                return shared
        raise NumericError(
            f"a micro-batch computed again is none of the {len(self.kept)} that wait for their "
            "backward pass: its bits have changed; go on without --enable-recompute"
        )

    def release(self, shared: SharedStatistics) -> None:
        """Its backward pass has come."""
        self.kept = [one for one in self.kept if one is not shared]

    def clear(self) -> None:
        """No backward pass will come any more."""
        self.kept.clear()

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


Pair = tuple[Tensor, Tensor]  # mean and unbiased variance of one batch, for each channel


def as_they_are(statistics: Tensor) -> Tensor:
    """One replica alone: its micro-batches are all there are."""
    return statistics


class BatchNorm(nn.Module):
    """Batch normalization whose running statistics wait for the update.

    Each training pass leaves its batch statistics in `waiting`; `PendingStatistics` applies them
    in the order of the micro-batches. So a skipped update changes nothing, and the order of work on
    several devices cannot change the result. Replicas may share their statistics.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, spec: NormSpec) -> None:
        super().__init__()
        self.eps = spec.eps
        self.momentum = spec.momentum
        channels = spec.channels
        self.weight = nn.Parameter(torch.ones(channels)) if spec.scale else None
        self.bias = nn.Parameter(torch.zeros(channels)) if spec.offset else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.full((channels,), spec.first_variance))
        self.statistics = two_passes if spec.two_passes else one_pass
        self.waiting: list[Pair] = []
        self.recording = True  # off while a pass is computed again for its backward
        self.frozen = False  # then every pass normalizes by the running statistics
        self.share_with(SingleReplica())

    def share_with(self, group: StatisticsGroup) -> None:
        """From now on a micro-batch is normalized together with those of the group."""
        self.sync = SyncStatistics(group, self.eps, self.statistics)
        # A pass is torch's own if it meets nobody, and measures in two passes.
        self.is_plain = group.span == 1 and self.statistics is two_passes

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.measures:
            return F.batch_norm(
                inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        outputs, statistics = self.measured(inputs)
        self.note(statistics)
        return outputs

    def measured(self, inputs: Tensor) -> tuple[Tensor, Pair]:
        """A training pass that notes nothing."""
        inputs = one_way(inputs)
        if not self.is_plain:
            shared = self.sync.measure(inputs) if self.recording else self.sync.recall(inputs)
            weight = torch.ones_like(shared.mean) if self.weight is None else self.weight
            bias = torch.zeros_like(shared.mean) if self.bias is None else self.bias
            outputs = self.sync.normalize(inputs, weight, bias, shared)
            return one_way(outputs), (shared.mean, shared.unbiased)
        # With momentum 1, torch writes exactly this batch's mean and unbiased variance here.
        mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        outputs = F.batch_norm(
            inputs, mean, variance, self.weight, self.bias, True, momentum=1.0, eps=self.eps
        )
        return one_way(outputs), (mean, variance)

    @property
    def measures(self) -> bool:
        """Whether a pass looks at the statistics of its batch."""
        return self.training and not self.frozen

    def note(self, statistics: Pair) -> None:
        """They wait for the update, unless they did already."""
        if self.recording:
            self.waiting.append(statistics)


class PendingStatistics:
    """The batch statistics of an update, which wait in the norms until its optimizer step."""

    def __init__(self, norms: Sequence[BatchNorm]) -> None:
        self.norms = norms

    def apply(self, gather: Callable[[Tensor], Tensor] = as_they_are) -> None:
        """Apply them, one micro-batch after the other, to all running statistics at once.

        `gather` turns our micro-batches' statistics, one row each, into those of all replicas.
        Replicas that share statistics have the same rows: those of the first in each span count, as
        one micro-batch of N-fold size.
        """
        norms = self.norms
        if not norms:
            return
        running = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
        momentum, span = norms[0].momentum, norms[0].sync.group.span
        # As (micro-batches, means and variances of all norms).
        waiting = zip(*(norm.waiting for norm in norms), strict=True)
        rows = [torch.cat([one for pair in statistics for one in pair]) for statistics in waiting]
        mine = torch.stack(rows) if rows else torch.empty(0)
        for number, row in enumerate(gather(mine)):
            if number // len(mine) % span:
                continue
            batch = row.split([len(buffer) for buffer in running])
            torch._foreach_mul_(running, 1 - momentum)
            torch._foreach_add_(running, batch, alpha=momentum)
        self.discard()

    def discard(self) -> None:
        """The update is skipped, or its statistics are applied."""
        for norm in self.norms:
            norm.waiting.clear()
            norm.sync.clear()


class GroupNorm(nn.Module):
    """Each sample is normalized within each of its groups of channels."""

    def __init__(self, spec: NormSpec) -> None:
        super().__init__()
        self.groups = spec.groups
        self.eps = spec.eps
        self.strided = spec.strided
        self.two_passes = spec.two_passes
        channels = spec.channels
        self.weight = nn.Parameter(torch.ones(channels)) if spec.scale else None
        self.bias = nn.Parameter(torch.zeros(channels)) if spec.offset else None

    def forward(self, inputs: Tensor) -> Tensor:
        # Where a pixel's channels lie together, torch takes one pass, E[x²] − E[x]²: with the mean
        # gone before, that is as good as two. A norm does not see what all its members have in
        # common, so neither do gradients.
        inputs = inputs - self._means(inputs.detach()) if self.two_passes else inputs
        if not self.strided:
            return F.group_norm(inputs, self.groups, self.weight, self.bias, self.eps)
        # torch knows groups of neighbors alone, so the channels change places and change back.
        rows = inputs.shape[1] // self.groups
        inputs = _transposed(inputs, rows, self.groups)
        outputs = F.group_norm(
            inputs,
            self.groups,
            _transposed_vector(self.weight, rows, self.groups),
            _transposed_vector(self.bias, rows, self.groups),
            self.eps,
        )
        return _transposed(outputs, self.groups, rows)

    def _means(self, inputs: Tensor) -> Tensor:
        """For each channel that of its group."""
        rows = inputs.shape[1] // self.groups
        shape, members = ((rows, self.groups), 1) if self.strided else ((self.groups, rows), 2)
        channels = torch.unflatten(inputs.mean((2, 3)), 1, shape)
        means = channels.mean(members, keepdim=True).expand_as(channels)
        return means.flatten(1)[:, :, None, None]


def _transposed(inputs: Tensor, rows: int, columns: int) -> Tensor:
    """Channel r · columns + c becomes c · rows + r. A pixel's channels stay together in memory."""
    pixels = torch.unflatten(inputs.permute(0, 2, 3, 1), 3, (rows, columns))
    return pixels.transpose(3, 4).flatten(3, 4).permute(0, 3, 1, 2)


def _transposed_vector(vector: Tensor | None, rows: int, columns: int) -> Tensor | None:
    return None if vector is None else vector.view(rows, columns).t().flatten()


# What a convolution makes on its road, the norm takes from it, and nobody else sees it.
_NEIGHBORS = {
    (Route.MAIN, Route.MAIN),
    (Route.FORK, Route.MAIN),
    (Route.SIDE, Route.SIDE),
    (Route.SPUR, Route.SIDE),
}


def fold_norms(
    layers: Sequence[LayerPlan], modules: Mapping[str, nn.Module]
) -> tuple[list[LayerPlan], dict[str, nn.Module]]:
    """The layers without the norms that could be folded, and their live ones by name."""
    made: dict[str, nn.Module] = {}
    folded: set[str] = set()
    for layer, following in pairwise(layers):
        conv, norm = modules[layer.name], modules[following.name]
        neighbors = (layer.route, following.route) in _NEIGHBORS
        if neighbors and isinstance(conv, nn.Conv2d) and isinstance(norm, BatchNorm):
            made[layer.name] = _folded(conv, norm)
            folded.add(following.name)
    kept = [layer for layer in layers if layer.name not in folded]
    return kept, {one.name: made.get(one.name) or deepcopy(modules[one.name]) for one in kept}


@torch.no_grad()
def _folded(conv: nn.Conv2d, norm: BatchNorm) -> nn.Conv2d:
    """In 64 bits, so that only the last rounding of each weight is new."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale *= 1 if norm.weight is None else norm.weight
    offset = (0 if norm.bias is None else norm.bias) - norm.running_mean.double() * scale
    made = deepcopy(conv)
    weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
    if conv.bias is not None:
        offset += conv.bias.double() * scale
    made.weight.copy_(weight)
    made.bias = nn.Parameter(offset.to(conv.weight.dtype))
    return made
