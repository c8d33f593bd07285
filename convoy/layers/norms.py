"""Batch norm with deferred running statistics, optionally synced over replicas; group norm; and
folding of batch norm into the preceding convolution.
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
from convoy.layers.modules import canonical_strides
from convoy.models.layers import LayerPlan, NormSpec, Route

# Mean and population variance: (2, channels).
StatisticsFn = Callable[[Tensor], Tensor]


def two_pass_statistics(inputs: Tensor) -> Tensor:
    """Compute the mean first, then the variance around it; 5 to 25 times as fast as var_mean."""
    return torch.stack(torch.batch_norm_update_stats(inputs, None, None, 1.0))


def one_pass_statistics(inputs: Tensor) -> Tensor:
    """Compute E[x²] − E[x]²: one pass, but it loses digits where the mean is large."""
    pixels = [dim for dim in range(inputs.dim()) if dim != 1]
    mean = inputs.mean(pixels)
    return torch.stack([mean, (inputs.square().mean(pixels) - mean.square()).clamp_min(0)])


class SyncGroup(Protocol):
    """The replicas that share batch statistics. All of them run their norms in the same order."""

    @property
    def size(self) -> int:
        """Number of replicas."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Stack the tensors of all replicas in replica order."""


class SingleReplica:
    """A group of one: statistics are not shared."""

    size = 1

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(0)


@dataclass(frozen=True, eq=False)
class GroupStatistics:
    """Per-channel statistics of one micro-batch over all replicas of the group."""

    local: Tensor  # (2, channels): mean and variance of this replica
    mean: Tensor
    variance: Tensor  # population variance
    count: int  # values per channel over the whole group

    @property
    def unbiased_variance(self) -> Tensor:
        """The variance that running statistics accumulate."""
        return self.variance * (self.count / (self.count - 1))


class SyncBatchStatistics:
    """Gathers batch statistics over the group and keeps each until its backward pass."""

    def __init__(self, group: SyncGroup, eps: float, statistics: StatisticsFn) -> None:
        self.group = group
        self.eps = eps
        self.statistics = statistics
        self.pending: list[GroupStatistics] = []

    @torch.no_grad()
    def gather_statistics(self, inputs: Tensor) -> GroupStatistics:
        """Gather statistics over the group.

        Replicas have equal counts, so means of means are exact. They are combined in fp64 around
        the shared mean: a difference of large squares would lose digits.
        """
        local = self.statistics(inputs)
        means, variances = self.group.all_gather(local).double().unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        count = inputs.numel() // inputs.shape[1] * self.group.size
        shared = GroupStatistics(local, mean.to(local.dtype), variance.to(local.dtype), count)
        self.pending.append(shared)
        return shared

    @torch.no_grad()
    def find_pending(self, inputs: Tensor) -> GroupStatistics:
        """Find the gathered statistics of a recomputed micro-batch by the bits of its local ones.

        Nothing is gathered twice, and backward passes may come in any order. If several
        micro-batches have the same bits, the oldest is returned: its backward pass comes first in
        every schedule.
        """
        bits = self.statistics(inputs).view(torch.uint8)  # compare bits so that NaN equals itself
        for shared in self.pending:
            if torch.equal(shared.local.view(torch.uint8), bits):
                return shared
        raise NumericError(
            f"a recomputed micro-batch matches none of the {len(self.pending)} that wait for their "
            "backward pass: its forward pass was not reproducible; use --no-enable-recompute"
        )

    def release(self, shared: GroupStatistics) -> None:
        """Discard the statistics of a micro-batch whose backward pass has started."""
        self.pending = [entry for entry in self.pending if entry is not shared]


class _SyncBatchNormFunction(torch.autograd.Function):
    """Batch norm over the whole group: torch's kernel split in two, with a gather in between."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        shared: GroupStatistics,
        statistics: SyncBatchStatistics,
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.shared, ctx.statistics = shared, statistics
        return F.batch_norm(inputs, shared.mean, shared.variance, weight, bias, eps=statistics.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors  # may recompute, so release comes after
        shared, statistics = ctx.shared, ctx.statistics
        statistics.release(shared)
        mean, variance, eps = shared.mean, shared.variance, statistics.eps
        # Per-channel sums of dy·x̂ and of dy: the gradients of a norm with fixed statistics.
        _, *sums = torch.ops.aten.native_batch_norm_backward(
            grad_output, inputs, weight, mean, variance, None, None, False, eps, [False, True, True]
        )
        means = statistics.group.all_gather(torch.stack(sums)).double().sum(0) / shared.count
        # weight / std · (dy − x̂ · mean of dy·x̂ − mean of dy); the last two terms are a norm again.
        scale = weight.double() * (variance.double() + eps).rsqrt()
        slope, shift = (-scale * means).to(inputs.dtype)
        grad_input = F.batch_norm(inputs, mean, variance, slope, shift, eps=eps)
        pixels = (1,) * (inputs.dim() - 2)
        grad_input.addcmul_(grad_output, scale.to(inputs.dtype).view(-1, *pixels))
        # Local sums: the gradient all-reduce adds those of the other replicas.
        return grad_input, *sums, None, None


MeanVar = tuple[Tensor, Tensor]  # per-channel mean and unbiased variance of one batch


class BatchNorm(nn.Module):
    """Batch normalization whose running statistics are updated with the optimizer step.

    Each training pass appends its batch statistics to `pending_statistics`; `PendingStatistics`
    applies them in micro-batch order. A skipped update therefore changes nothing, and the order in
    which devices work cannot change the result. Replicas may share their statistics.
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
        self.register_buffer("running_var", torch.full((channels,), spec.initial_running_var))
        self.statistics = two_pass_statistics if spec.stable else one_pass_statistics
        self.pending_statistics: list[MeanVar] = []
        self.records_statistics = True  # off while a pass is recomputed
        self.frozen = False  # if set, every pass uses the running statistics
        self.sync_with(SingleReplica())

    def sync_with(self, group: SyncGroup) -> None:
        """Share batch statistics with the replicas of a group from now on."""
        self.sync = SyncBatchStatistics(group, self.eps, self.statistics)
        # torch's kernel computes local statistics in two passes.
        self.uses_torch_kernel = group.size == 1 and self.statistics is two_pass_statistics

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.frozen:
            return F.batch_norm(
                inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        outputs, statistics = self.forward_with_statistics(inputs)
        if self.records_statistics:
            self.pending_statistics.append(statistics)
        return outputs

    def forward_with_statistics(self, inputs: Tensor) -> tuple[Tensor, MeanVar]:
        """Run a training pass and return its batch statistics instead of recording them."""
        inputs = canonical_strides(inputs)
        if not self.uses_torch_kernel:
            shared = (
                self.sync.gather_statistics(inputs)
                if self.records_statistics
                else self.sync.find_pending(inputs)
            )
            weight = torch.ones_like(shared.mean) if self.weight is None else self.weight
            bias = torch.zeros_like(shared.mean) if self.bias is None else self.bias
            outputs: Tensor = _SyncBatchNormFunction.apply(  # type: ignore[no-untyped-call]  # by torch
                inputs, weight, bias, shared, self.sync
            )
            return canonical_strides(outputs), (shared.mean, shared.unbiased_variance)
        # With momentum 1, torch writes this batch's mean and unbiased variance into the buffers.
        mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        outputs = F.batch_norm(
            inputs, mean, variance, self.weight, self.bias, True, momentum=1.0, eps=self.eps
        )
        return canonical_strides(outputs), (mean, variance)


class PendingStatistics:
    """The batch statistics of one update, recorded in the norms until its optimizer step."""

    def __init__(self, norms: Sequence[BatchNorm]) -> None:
        self.norms = norms

    def apply(self, gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        """Update all running statistics, one micro-batch after the other.

        `gather` turns the rows of this replica (one per micro-batch) into those of all replicas.
        Replicas that share statistics have equal rows: only the first of each group counts.
        """
        norms = self.norms
        if not norms:
            return
        running = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
        by_momentum: dict[float, list[int]] = {}  # positions in `running`
        for index, norm in enumerate(norms):
            by_momentum.setdefault(norm.momentum, []).extend((2 * index, 2 * index + 1))
        group_size = norms[0].sync.group.size
        # (micro-batches, means and variances of all norms)
        per_micro = zip(*(norm.pending_statistics for norm in norms), strict=True)
        rows = [torch.cat([tensor for pair in pairs for tensor in pair]) for pairs in per_micro]
        local = torch.stack(rows) if rows else torch.empty(0)
        for index, row in enumerate(gather(local)):
            if index // len(local) % group_size:
                continue
            batch = row.split([len(buffer) for buffer in running])
            for momentum, positions in by_momentum.items():
                buffers = [running[position] for position in positions]
                torch._foreach_mul_(buffers, 1 - momentum)
                torch._foreach_add_(buffers, [batch[p] for p in positions], alpha=momentum)
        self.discard()

    def discard(self) -> None:
        """Discard the recorded statistics: the update was applied or skipped."""
        for norm in self.norms:
            norm.pending_statistics.clear()
            norm.sync.pending.clear()  # no backward pass is left


class GroupNorm(nn.Module):
    """Group norm over contiguous or interleaved groups of channels, optionally in two passes."""

    def __init__(self, spec: NormSpec) -> None:
        super().__init__()
        self.groups = spec.groups
        self.eps = spec.eps
        self.interleaved_groups = spec.interleaved_groups
        self.stable = spec.stable
        channels = spec.channels
        self.weight = nn.Parameter(torch.ones(channels)) if spec.scale else None
        self.bias = nn.Parameter(torch.zeros(channels)) if spec.offset else None

    def forward(self, inputs: Tensor) -> Tensor:
        # For channels_last inputs torch computes E[x²] − E[x]² in one pass; with the mean removed
        # first, that is as accurate as two passes. A norm is invariant to the mean, so the
        # subtraction needs no gradient.
        inputs = inputs - self._group_means(inputs.detach()) if self.stable else inputs
        if not self.interleaved_groups:
            return F.group_norm(inputs, self.groups, self.weight, self.bias, self.eps)
        # torch only has contiguous groups, so transpose the channels and transpose them back.
        rows = inputs.shape[1] // self.groups
        inputs = _transpose_channels(inputs, rows, self.groups)
        outputs = F.group_norm(
            inputs,
            self.groups,
            _transpose_vector(self.weight, rows, self.groups),
            _transpose_vector(self.bias, rows, self.groups),
            self.eps,
        )
        return _transpose_channels(outputs, self.groups, rows)

    def _group_means(self, inputs: Tensor) -> Tensor:
        """Return the mean of each channel's group: (samples, channels, 1, 1)."""
        rows = inputs.shape[1] // self.groups
        shape, members = (
            ((rows, self.groups), 1) if self.interleaved_groups else ((self.groups, rows), 2)
        )
        channels = torch.unflatten(inputs.mean((2, 3)), 1, shape)
        means = channels.mean(members, keepdim=True).expand_as(channels)
        return means.flatten(1)[:, :, None, None]


def _transpose_channels(inputs: Tensor, rows: int, columns: int) -> Tensor:
    """Move channel r · columns + c to c · rows + r, keeping the tensor channels_last."""
    pixels = torch.unflatten(inputs.permute(0, 2, 3, 1), 3, (rows, columns))
    return pixels.transpose(3, 4).flatten(3, 4).permute(0, 3, 1, 2)


def _transpose_vector(vector: Tensor | None, rows: int, columns: int) -> Tensor | None:
    return None if vector is None else vector.view(rows, columns).t().flatten()


# Routes where only the norm reads the convolution's output.
_FOLDABLE_ROUTES = {
    (Route.MAIN, Route.MAIN),
    (Route.FORK, Route.MAIN),
    (Route.SIDE, Route.SIDE),
    (Route.BRANCH, Route.SIDE),
}


def fold_batch_norms(
    layers: Sequence[LayerPlan], modules: Mapping[str, nn.Module]
) -> tuple[list[LayerPlan], dict[str, nn.Module]]:
    """Return the layers without the norms that were folded, and their modules by name."""
    replaced: dict[str, nn.Module] = {}
    folded: set[str] = set()
    for layer, following in pairwise(layers):
        conv, norm = modules[layer.name], modules[following.name]
        is_private = (layer.route, following.route) in _FOLDABLE_ROUTES
        if is_private and isinstance(conv, nn.Conv2d) and isinstance(norm, BatchNorm):
            replaced[layer.name] = _fold_batch_norm(conv, norm)
            folded.add(following.name)
    remaining = [layer for layer in layers if layer.name not in folded]
    names = [layer.name for layer in remaining]
    return remaining, {name: replaced.get(name) or deepcopy(modules[name]) for name in names}


@torch.no_grad()
def _fold_batch_norm(conv: nn.Conv2d, norm: BatchNorm) -> nn.Conv2d:
    """Fold in fp64, so that each weight is rounded only once."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale *= 1 if norm.weight is None else norm.weight
    offset = (0 if norm.bias is None else norm.bias) - norm.running_mean.double() * scale
    fused = deepcopy(conv)
    weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
    if conv.bias is not None:
        offset += conv.bias.double() * scale
    fused.weight.copy_(weight)
    fused.bias = nn.Parameter(offset.to(conv.weight.dtype))
    return fused
