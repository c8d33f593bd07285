"""Batch norm, whose running statistics wait for the update, and group norm, in one pass or two."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convoy.layers.modules import one_way
from convoy.layers.sync_batch_norm import (
    SingleReplica,
    StatisticsGroup,
    SyncStatistics,
    one_pass,
    two_passes,
)
from convoy.models.operations import NormSpec

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
        outputs, statistics = self._measured(one_way(inputs))
        return one_way(outputs), statistics

    def _measured(self, inputs: Tensor) -> tuple[Tensor, Pair]:
        if not self.is_plain:
            return self._measured_together(inputs)
        # With momentum 1, torch writes exactly this batch's mean and unbiased variance here.
        mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        outputs = F.batch_norm(
            inputs,
            mean,
            variance,
            self.weight,
            self.bias,
            training=True,
            momentum=1.0,
            eps=self.eps,
        )
        return outputs, (mean, variance)

    @property
    def measures(self) -> bool:
        """Whether a pass looks at the statistics of its batch."""
        return self.training and not self.frozen

    @property
    def is_plain(self) -> bool:
        """Whether a pass is torch's own: it meets nobody, and measures in two passes."""
        return self.sync.group.span == 1 and self.statistics is two_passes

    def note(self, statistics: Pair) -> None:
        """They wait for the update, unless they did already."""
        if self.recording:
            self.waiting.append(statistics)

    def _measured_together(self, inputs: Tensor) -> tuple[Tensor, Pair]:
        shared = self.sync.measure(inputs) if self.recording else self.sync.recall(inputs)
        weight = torch.ones_like(shared.mean) if self.weight is None else self.weight
        bias = torch.zeros_like(shared.mean) if self.bias is None else self.bias
        outputs = self.sync.normalize(inputs, weight, bias, shared)
        return outputs, (shared.mean, shared.unbiased)


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
        mine = self._rows()
        for number, row in enumerate(gather(mine)):
            if number // len(mine) % span:
                continue
            batch = row.split([len(buffer) for buffer in running])
            torch._foreach_mul_(running, 1 - momentum)
            torch._foreach_add_(running, batch, alpha=momentum)
        self.discard()

    def _rows(self) -> Tensor:
        """As (micro-batches, means and variances of all norms)."""
        waiting = zip(*(norm.waiting for norm in self.norms), strict=True)
        rows = [torch.cat([one for pair in statistics for one in pair]) for statistics in waiting]
        return torch.stack(rows) if rows else torch.empty(0)

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
