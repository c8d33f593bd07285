"""Group normalization: groups of neighbors or of every G-th channel, in one pass or two."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convoy.plan.operations import Norm


class GroupNorm(nn.Module):
    """Each sample is normalized within each of its groups of channels."""

    def __init__(self, planned: Norm) -> None:
        super().__init__()
        self.groups = planned.groups
        self.eps = planned.eps
        self.strided = planned.strided
        self.two_passes = planned.two_passes
        channels = planned.channels
        self.weight = nn.Parameter(torch.ones(channels)) if planned.scale else None
        self.bias = nn.Parameter(torch.zeros(channels)) if planned.offset else None

    def forward(self, given: Tensor) -> Tensor:
        # Where a pixel's channels lie together, torch takes one pass, E[x²] − E[x]²: with the mean
        # gone before, that is as good as two. A norm does not see what all its members have in
        # common, so neither do gradients.
        given = given - self._means(given.detach()) if self.two_passes else given
        if not self.strided:
            return F.group_norm(given, self.groups, self.weight, self.bias, self.eps)
        # torch knows groups of neighbors alone, so the channels change places and change back.
        rows = given.shape[1] // self.groups
        given = _transposed(given, rows, self.groups)
        made = F.group_norm(
            given,
            self.groups,
            _transposed_vector(self.weight, rows, self.groups),
            _transposed_vector(self.bias, rows, self.groups),
            self.eps,
        )
        return _transposed(made, self.groups, rows)

    def _means(self, given: Tensor) -> Tensor:
        """For each channel that of its group."""
        rows = given.shape[1] // self.groups
        shape, members = ((rows, self.groups), 1) if self.strided else ((self.groups, rows), 2)
        channels = torch.unflatten(given.mean((2, 3)), 1, shape)
        means = channels.mean(members, keepdim=True).expand_as(channels)
        return means.flatten(1)[:, :, None, None]


def _transposed(given: Tensor, rows: int, columns: int) -> Tensor:
    """Channel r · columns + c becomes c · rows + r. A pixel's channels stay together in memory."""
    pixels = torch.unflatten(given.permute(0, 2, 3, 1), 3, (rows, columns))
    return pixels.transpose(3, 4).flatten(3, 4).permute(0, 3, 1, 2)


def _transposed_vector(vector: Tensor | None, rows: int, columns: int) -> Tensor | None:
    return None if vector is None else vector.view(rows, columns).t().flatten()
