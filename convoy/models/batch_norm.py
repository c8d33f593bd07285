"""Batch normalization whose running statistics wait for the update."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convoy.models.joint_norm import JointStatistics, Nobody, Partners, one_pass, two_passes
from convoy.models.layers import one_way
from convoy.plan.operations import Norm

Pair = tuple[Tensor, Tensor]  # mean and unbiased variance of one batch, for each channel


def as_they_are(statistics: Tensor) -> Tensor:
    """One replica alone: its micro-batches are all there are."""
    return statistics


class BatchNorm(nn.Module):
    """Batch normalization whose running statistics wait for the update.

    Each training pass leaves its batch statistics in `waiting`; `absorb` applies them in the order
    of the micro-batches. So a skipped update changes nothing, and the order of work on several
    devices cannot change the result. Replicas may be partners in their statistics.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, planned: Norm) -> None:
        super().__init__()
        self.eps = planned.eps
        self.momentum = planned.momentum
        channels = planned.channels
        self.weight = nn.Parameter(torch.ones(channels)) if planned.scale else None
        self.bias = nn.Parameter(torch.zeros(channels)) if planned.offset else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.full((channels,), planned.first_variance))
        self.statistics = two_passes if planned.two_passes else one_pass
        self.waiting: list[Pair] = []
        self.recording = True  # off while a pass is computed again for its backward
        self.frozen = False  # then every pass normalizes by the running statistics
        self.share_with(Nobody())

    def share_with(self, partners: Partners) -> None:
        """From now on a micro-batch is normalized together with those of the partners."""
        self.joint = JointStatistics(partners, self.eps, self.statistics)

    def forward(self, given: Tensor) -> Tensor:
        if not self.measures:
            return F.batch_norm(
                given, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        made, statistics = self.measured(given)
        self.note(statistics)
        return made

    def measured(self, given: Tensor) -> tuple[Tensor, Pair]:
        """A training pass that notes nothing."""
        made, statistics = self._measured(one_way(given))
        return one_way(made), statistics

    def _measured(self, given: Tensor) -> tuple[Tensor, Pair]:
        if not self.is_plain:
            return self._measured_jointly(given)
        # With momentum 1, torch writes exactly this batch's mean and unbiased variance here.
        mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        made = F.batch_norm(
            given, mean, variance, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
        )
        return made, (mean, variance)

    @property
    def measures(self) -> bool:
        """Whether a pass looks at the statistics of its batch."""
        return self.training and not self.frozen

    @property
    def is_plain(self) -> bool:
        """Whether a pass is torch's own: it meets nobody, and measures in two passes."""
        return self.joint.partners.span == 1 and self.statistics is two_passes

    def note(self, statistics: Pair) -> None:
        """They wait for the update, unless they did already."""
        if self.recording:
            self.waiting.append(statistics)

    def _measured_jointly(self, given: Tensor) -> tuple[Tensor, Pair]:
        joint = self.joint.measure(given) if self.recording else self.joint.recall(given)
        weight = torch.ones_like(joint.mean) if self.weight is None else self.weight
        bias = torch.zeros_like(joint.mean) if self.bias is None else self.bias
        made = self.joint.normalize(given, weight, bias, joint)
        return made, (joint.mean, joint.unbiased)


def absorb(norms: list[BatchNorm], gather: Callable[[Tensor], Tensor] = as_they_are) -> None:
    """Apply the waiting statistics, one micro-batch after the other, to all norms at once.

    `gather` turns our micro-batches' statistics, one row each, into those of all replicas. Partners
    have the same rows: those of the first in each span count, as one micro-batch of N-fold size.
    """
    if not norms:
        return
    running = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
    momentum, span = norms[0].momentum, norms[0].joint.partners.span
    mine = _rows(norms)
    for number, row in enumerate(gather(mine)):
        if number // len(mine) % span:
            continue
        batch = row.split([len(buffer) for buffer in running])
        torch._foreach_mul_(running, 1 - momentum)
        torch._foreach_add_(running, batch, alpha=momentum)
    forget(norms)


def _rows(norms: list[BatchNorm]) -> Tensor:
    """The waiting statistics as (micro-batches, means and variances of all norms)."""
    waiting = zip(*(norm.waiting for norm in norms), strict=True)
    rows = [torch.cat([one for pair in statistics for one in pair]) for statistics in waiting]
    return torch.stack(rows) if rows else torch.empty(0)


def forget(norms: list[BatchNorm]) -> None:
    """Drop the waiting statistics: the update was skipped, or nobody will ask."""
    for norm in norms:
        norm.waiting.clear()
        norm.joint.clear()
