"""Batch norm synchronized over a span of replicas against torch with all samples, in float64."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from support.networks import build_slice, images_and_labels, small_layers
from support.thread_replicas import ThreadPartner, run_in_threads
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.errors import NumericError
from convoy.layers.norms import (
    BatchNorm,
    PendingStatistics,
    SingleReplica,
    SyncBatchStatistics,
    two_pass_statistics,
)
from convoy.models.layers import NormSpec
from convoy.parallel.slice import Slice

CHANNELS = 5
SPANS = pytest.mark.parametrize("span", [2, 4])


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_batch_norm(channels: int, eps: float, momentum: float) -> BatchNorm:
    return BatchNorm(NormSpec(channels, "batch", 1, eps, momentum))


def norm_of(norm_type: Callable[..., nn.Module]) -> nn.Module:
    """A float64 norm of convoy or torch with random weights."""
    norm = norm_type(CHANNELS, eps=1e-3, momentum=0.1).double()
    norm.get_parameter("weight").data = noise(CHANNELS, seed=1)
    norm.get_parameter("bias").data = noise(CHANNELS, seed=2)
    return norm


@dataclass(frozen=True)
class PassResult:
    """The output and all gradients."""

    outputs: Tensor
    grad_inputs: Tensor
    weight: Tensor
    bias: Tensor

    def relative_difference(self, other: "PassResult") -> float:
        """The largest difference, relative to the largest value."""
        pairs = [(item, vars(other)[name]) for name, item in vars(self).items()]
        return max(
            float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs
        )


def forward_backward(norm: nn.Module, inputs: Tensor, grad_output: Tensor) -> PassResult:
    inputs = inputs.clone().requires_grad_()
    outputs = norm(inputs)
    outputs.backward(grad_output)
    weight, bias = norm.get_parameter("weight").grad, norm.get_parameter("bias").grad
    assert inputs.grad is not None and weight is not None and bias is not None
    return PassResult(outputs.detach(), inputs.grad, weight, bias)


def run_synced(span: int, inputs: Tensor, grad_output: Tensor) -> PassResult:
    """The joined results of all partners; each partner averages its loss over its own part."""

    def run_partner(partner: ThreadPartner) -> PassResult:
        norm = norm_of(make_batch_norm).to(inputs.dtype)
        norm.sync_with(partner)
        mine = [full.chunk(span)[partner.index] for full in (inputs, span * grad_output)]
        return forward_backward(norm, *mine)

    parts = run_in_threads(span, run_partner)
    return PassResult(
        torch.cat([part.outputs for part in parts]),
        torch.cat([part.grad_inputs for part in parts]) / span,
        torch.stack([part.weight for part in parts]).sum(0) / span,
        torch.stack([part.bias for part in parts]).sum(0) / span,
    )


LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


def batch(span: int, layout: torch.memory_format, shift: float = 1.0) -> tuple[Tensor, Tensor]:
    """Every part has another distribution, so local statistics would be far off."""
    offsets = torch.arange(span).repeat_interleave(3).view(-1, 1, 1, 1)
    inputs = noise(3 * span, CHANNELS, 4, 4) * (1 + offsets) + 2 * offsets + shift
    grad_output = noise(3 * span, CHANNELS, 4, 4, seed=5) + 0.3 * offsets
    return inputs.to(memory_format=layout), grad_output.to(memory_format=layout)


@SPANS
@LAYOUTS
def test_a_span_equals_one_replica_with_all_samples(span: int, layout: torch.memory_format):
    """Measured differences are 6e-16 to 2e-15."""
    inputs, grad_output = batch(span, layout)
    expected = forward_backward(norm_of(nn.BatchNorm2d), inputs, grad_output)

    assert run_synced(span, inputs, grad_output).relative_difference(expected) < 1e-14


@SPANS
@LAYOUTS
def test_in_fp32_a_span_is_as_accurate_as_torch(span: int, layout: torch.memory_format):
    """Measured differences are 8e-8 to 4e-7, and 1e-7 to 6e-7 for torch."""
    inputs, grad_output = batch(span, layout)
    exact = forward_backward(norm_of(nn.BatchNorm2d), inputs, grad_output)

    assert run_synced(span, inputs.float(), grad_output.float()).relative_difference(exact) < 1e-6


@SPANS
def test_a_mean_far_from_zero_loses_few_digits(span: int):
    """Measured differences are 7e-5 and 2e-5, and 3e-5 and 2e-5 for torch."""
    inputs, grad_output = batch(span, torch.contiguous_format, shift=1000.0)
    exact = forward_backward(norm_of(nn.BatchNorm2d), inputs.float().double(), grad_output)

    assert run_synced(span, inputs.float(), grad_output.float()).relative_difference(exact) < 3e-4


def test_the_gradient_of_a_norm_over_vectors_is_correct():
    inputs, grad_output = noise(8, CHANNELS), noise(8, CHANNELS, seed=1)
    expected = forward_backward(norm_of(nn.BatchNorm1d), inputs, grad_output)

    assert run_synced(2, inputs, grad_output).relative_difference(expected) < 1e-14


def norms_of(network: Slice) -> list[BatchNorm]:
    return [module for module in network.modules() if isinstance(module, BatchNorm)]


def plain_resnet() -> Slice:
    """A float64 resnet8 with the norms of torch."""
    network = build_slice(small_layers(), seed=4).double()
    for name, layer in network.layers.items():
        if isinstance(layer, BatchNorm):
            network.layers[name] = nn.BatchNorm2d(len(layer.weight), layer.eps).double()
    return network


def train(network: Slice, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradients of the mean loss by all weights and the images."""
    images = images.clone().requires_grad_()
    F.cross_entropy(network(images)[0], labels).backward()
    weights = {"images": images, **network.named_weights()}
    return {name: item.grad for name, item in weights.items() if item.grad is not None}


def train_resnet_synced(span: int, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The mean gradients of all partners."""

    def run_partner(partner: ThreadPartner) -> dict[str, Tensor]:
        network = build_slice(small_layers(), seed=4).to(images.dtype)
        for norm in norms_of(network):
            norm.sync_with(partner)
        return train(network, images.chunk(span)[partner.index], labels.chunk(span)[partner.index])

    parts = run_in_threads(span, run_partner)
    means = {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
    return means | {"images": torch.cat([part["images"] for part in parts]) / span}


@SPANS
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_a_full_network_equals_one_replica_with_all_samples(
    span: int, dtype: torch.dtype, bound: float
):
    """Measured differences are 3e-15 and 1.4e-6; torch in float32 differs by 1e-6."""
    images, labels = images_and_labels(4 * span, 12)
    expected = train(plain_resnet(), images.double(), labels)
    actual = train_resnet_synced(span, images.to(dtype), labels)
    differences = [
        float((actual[item] - expected[item]).abs().max() / expected[item].abs().max())
        for item in actual
    ]

    assert actual.keys() == expected.keys() and len(actual) > 20
    assert max(differences) < bound


@contextmanager
def no_recording(norm: BatchNorm) -> Iterator[None]:
    norm.records_statistics = False
    try:
        yield
    finally:
        norm.records_statistics = True


def run_several_micro_batches(
    partner: ThreadPartner, recompute: bool, order: list[int]
) -> list[Tensor]:
    """Four micro-batches forward, then backward in the given order; returns all results."""
    norm = norm_of(make_batch_norm).float()
    norm.sync_with(partner)
    layers = nn.Sequential(norm, nn.Tanh(), nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False))
    layers[2].weight.data = noise(CHANNELS, CHANNELS, 1, 1).float()
    inputs = [noise(3, CHANNELS, 4, 4, seed=8 * partner.index + item).float() for item in range(4)]
    outputs = [
        checkpoint(
            layers,
            item.requires_grad_(),
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), no_recording(norm)),
        )
        if recompute
        else layers(item.requires_grad_())
        for item in inputs
    ]
    gradients = {}
    for micro in order:
        layers.zero_grad()
        outputs[micro].square().mean().backward()
        gradients[micro] = [
            inputs[micro].grad,
            *(parameter.grad for parameter in layers.parameters()),
        ]
    statistics = [item for pair in norm.pending_statistics for item in pair]
    counts = torch.tensor([partner.num_gathers, len(norm.sync.pending)])
    return [
        counts,
        *outputs,
        *statistics,
        *(gradient for micro in range(4) for gradient in gradients[micro]),
    ]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]], ids=str)
def test_a_recomputed_pass_has_the_same_bits_and_gathers_nothing(order: list[int]):
    plain = run_in_threads(
        2, lambda partner: run_several_micro_batches(partner, False, [0, 1, 2, 3])
    )
    recomputed = run_in_threads(2, lambda partner: run_several_micro_batches(partner, True, order))

    for expected, actual in zip(plain, recomputed, strict=True):
        assert expected[0].tolist() == [8, 0]  # one gather per pass, nothing pending
        assert len(expected) == len(actual) and all(map(torch.equal, expected, actual))


def test_replicas_of_a_span_have_bit_identical_statistics():
    first, second = run_in_threads(
        2, lambda partner: run_several_micro_batches(partner, False, [0, 1, 2, 3])[5:13]
    )

    assert all(map(torch.equal, first, second))


def test_nan_statistics_are_found_again():
    statistics = SyncBatchStatistics(SingleReplica(), eps=1e-5, statistics=two_pass_statistics)
    inputs = torch.full((2, 3, 4, 4), torch.nan)
    joint = statistics.gather_statistics(inputs)

    assert statistics.find_pending(inputs) is joint


class VaryingReplica(SingleReplica):
    """A partner that contributes different values each time."""

    size = 2

    def __init__(self) -> None:
        self.gathers = 0

    def all_gather(self, tensor: Tensor) -> Tensor:
        self.gathers += 1
        return torch.stack([tensor, tensor + self.gathers])


def test_equal_local_statistics_are_found_in_order():
    statistics = SyncBatchStatistics(VaryingReplica(), eps=1e-5, statistics=two_pass_statistics)
    inputs = noise(2, 3, 4, 4)
    gathered = [statistics.gather_statistics(inputs) for _ in range(3)]
    found = []
    for joint in gathered:
        found.append(statistics.find_pending(inputs))
        statistics.release(joint)

    assert found == gathered
    assert not torch.equal(gathered[0].mean, gathered[1].mean)


def test_a_recomputed_pass_with_different_bits_is_an_error():
    statistics = SyncBatchStatistics(SingleReplica(), eps=1e-5, statistics=two_pass_statistics)
    inputs = noise(2, 3, 4, 4)
    statistics.gather_statistics(inputs)

    with pytest.raises(NumericError, match="--no-enable-recompute"):
        statistics.find_pending(inputs + 1e-9)


def test_pending_statistics_without_backward_are_discarded_with_the_update():
    def run_partner(partner: ThreadPartner) -> int:
        norm = norm_of(make_batch_norm)
        norm.sync_with(partner)
        norm(noise(3, CHANNELS, 4, 4))
        PendingStatistics([norm]).discard()
        return len(norm.sync.pending)

    assert run_in_threads(2, run_partner) == [0, 0]


def test_the_pending_variance_is_unbiased_over_all_samples():
    inputs, _ = batch(2, torch.contiguous_format)

    def run_partner(partner: ThreadPartner) -> tuple[Tensor, Tensor]:
        norm = norm_of(make_batch_norm)
        norm.sync_with(partner)
        norm(inputs.chunk(2)[partner.index])
        return norm.pending_statistics[0]

    by_channel = inputs.transpose(0, 1).reshape(CHANNELS, -1)
    for mean, variance in run_in_threads(2, run_partner):
        torch.testing.assert_close(mean, by_channel.mean(1))
        torch.testing.assert_close(variance, by_channel.var(1, correction=1))
