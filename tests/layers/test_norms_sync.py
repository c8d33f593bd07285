"""Batch norm over a span of replicas against torch's own over all their samples, in 64 bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from networks import images_and_labels, slice_of, small_layers
from spans import ThreadPartner, together
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.errors import NumericError
from convoy.layers.norms import (
    BatchNorm,
    PendingStatistics,
    SingleReplica,
    SyncStatistics,
    two_passes,
)
from convoy.models.layers import NormSpec
from convoy.parallel.slice import Slice

CHANNELS = 5
SPANS = pytest.mark.parametrize("span", [2, 4])


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ours(channels: int, eps: float, momentum: float) -> BatchNorm:
    return BatchNorm(NormSpec(channels, "batch", 1, eps, momentum))


def norm_of(kind: Callable[..., nn.Module]) -> nn.Module:
    """Ours or torch's, with weights that are neither 0 nor 1."""
    norm = kind(CHANNELS, eps=1e-3, momentum=0.1).double()
    norm.get_parameter("weight").data = noise(CHANNELS, seed=1)
    norm.get_parameter("bias").data = noise(CHANNELS, seed=2)
    return norm


@dataclass(frozen=True)
class Passed:
    """What goes out of a norm in both directions."""

    made: Tensor
    downward: Tensor
    weight: Tensor
    bias: Tensor

    def apart(self, other: "Passed") -> float:
        """The largest difference, relative to the largest value."""
        pairs = [(one, vars(other)[name]) for name, one in vars(self).items()]
        return max(float((one - two).abs().max() / two.abs().max()) for one, two in pairs)


def passed(norm: nn.Module, given: Tensor, upward: Tensor) -> Passed:
    given = given.clone().requires_grad_()
    made = norm(given)
    made.backward(upward)
    weight, bias = norm.get_parameter("weight").grad, norm.get_parameter("bias").grad
    assert given.grad is not None and weight is not None and bias is not None
    return Passed(made.detach(), given.grad, weight, bias)


def jointly(span: int, given: Tensor, upward: Tensor) -> Passed:
    """The parts of all partners as one: their losses are means over parts, N times as heavy."""

    def one(partner: ThreadPartner) -> Passed:
        norm = norm_of(ours).to(given.dtype)
        norm.share_with(partner)
        mine = [whole.chunk(span)[partner.place] for whole in (given, span * upward)]
        return passed(norm, *mine)

    parts = together(span, one)
    return Passed(
        torch.cat([part.made for part in parts]),
        torch.cat([part.downward for part in parts]) / span,
        torch.stack([part.weight for part in parts]).sum(0) / span,
        torch.stack([part.bias for part in parts]).sum(0) / span,
    )


LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


def batch(span: int, layout: torch.memory_format, shift: float = 1.0) -> tuple[Tensor, Tensor]:
    """Every part is of another kind, so that the parts' own statistics would be far off."""
    kinds = torch.arange(span).repeat_interleave(3).view(-1, 1, 1, 1)
    given = noise(3 * span, CHANNELS, 4, 4) * (1 + kinds) + 2 * kinds + shift
    upward = noise(3 * span, CHANNELS, 4, 4, seed=5) + 0.3 * kinds
    return given.to(memory_format=layout), upward.to(memory_format=layout)


@SPANS
@LAYOUTS
def test_a_span_equals_one_replica_with_all_samples(span: int, layout: torch.memory_format):
    """Seen were 6e-16 to 2e-15."""
    given, upward = batch(span, layout)
    expected = passed(norm_of(nn.BatchNorm2d), given, upward)

    assert jointly(span, given, upward).apart(expected) < 1e-14


@SPANS
@LAYOUTS
def test_in_32_bits_a_span_is_as_near_to_the_truth_as_torch_itself(
    span: int, layout: torch.memory_format
):
    """Seen were 8e-8 to 4e-7; torch itself was 1e-7 to 6e-7 from the truth."""
    given, upward = batch(span, layout)
    truth = passed(norm_of(nn.BatchNorm2d), given, upward)

    assert jointly(span, given.float(), upward.float()).apart(truth) < 1e-6


@SPANS
def test_a_mean_far_from_zero_costs_few_digits(span: int):
    """Seen were 7e-5 and 2e-5 (torch itself: 3e-5, 2e-5); squares of 32 bits would lose all."""
    given, upward = batch(span, torch.contiguous_format, shift=1000.0)
    truth = passed(norm_of(nn.BatchNorm2d), given.float().double(), upward)

    assert jointly(span, given.float(), upward.float()).apart(truth) < 3e-4


def test_the_gradient_of_a_vector_norm_is_right_too():
    given, upward = noise(8, CHANNELS), noise(8, CHANNELS, seed=1)
    expected = passed(norm_of(nn.BatchNorm1d), given, upward)

    assert jointly(2, given, upward).apart(expected) < 1e-14


def norms_of(network: Slice) -> list[BatchNorm]:
    return [one for one in network.modules() if isinstance(one, BatchNorm)]


def plain_resnet() -> Slice:
    """resnet8 in 64 bits, with torch's own norms."""
    network = slice_of(small_layers(), seed=4).double()
    for name, layer in network.layers.items():
        if isinstance(layer, BatchNorm):
            network.layers[name] = nn.BatchNorm2d(len(layer.weight), layer.eps).double()
    return network


def trained(network: Slice, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradients of the mean loss, those of the images as one of them."""
    images = images.clone().requires_grad_()
    F.cross_entropy(network(images)[0], labels).backward()
    weights = {"images": images, **network.named_weights()}
    return {name: one.grad for name, one in weights.items() if one.grad is not None}


def resnet_jointly(span: int, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The mean of the partners' gradients, as the update takes it."""

    def one(partner: ThreadPartner) -> dict[str, Tensor]:
        network = slice_of(small_layers(), seed=4).to(images.dtype)
        for norm in norms_of(network):
            norm.share_with(partner)
        return trained(
            network, images.chunk(span)[partner.place], labels.chunk(span)[partner.place]
        )

    parts = together(span, one)
    means = {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
    return means | {"images": torch.cat([part["images"] for part in parts]) / span}


@SPANS
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_a_whole_network_equals_one_replica_with_all_samples(
    span: int, dtype: torch.dtype, bound: float
):
    """Seen were 3e-15 and 1.4e-6; torch itself over all samples, in 32 bits, was 1e-6 away."""
    images, labels = images_and_labels(4 * span, 12)
    expected = trained(plain_resnet(), images.double(), labels)
    ours = resnet_jointly(span, images.to(dtype), labels)
    apart = [
        float((ours[one] - expected[one]).abs().max() / expected[one].abs().max()) for one in ours
    ]

    assert ours.keys() == expected.keys() and len(ours) > 20
    assert max(apart) < bound


@contextmanager
def quiet(norm: BatchNorm) -> Iterator[None]:
    norm.recording = False
    try:
        yield
    finally:
        norm.recording = True


def several(partner: ThreadPartner, recompute: bool, order: list[int]) -> list[Tensor]:
    """Four micro-batches forward, then backward in an order; all that came out, by micro-batch."""
    norm = norm_of(ours).float()
    norm.share_with(partner)
    layers = nn.Sequential(norm, nn.Tanh(), nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False))
    layers[2].weight.data = noise(CHANNELS, CHANNELS, 1, 1).float()
    given = [noise(3, CHANNELS, 4, 4, seed=8 * partner.place + one).float() for one in range(4)]
    made = [
        checkpoint(
            layers,
            one.requires_grad_(),
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), quiet(norm)),
        )
        if recompute
        else layers(one.requires_grad_())
        for one in given
    ]
    gradients = {}
    for micro in order:
        layers.zero_grad()
        made[micro].square().mean().backward()
        gradients[micro] = [given[micro].grad, *(one.grad for one in layers.parameters())]
    statistics = [one for pair in norm.waiting for one in pair]
    kept = torch.tensor([partner.meetings, len(norm.sync.kept)])
    return [kept, *made, *statistics, *(one for micro in range(4) for one in gradients[micro])]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]], ids=str)
def test_a_pass_computed_again_has_the_same_bits_and_meets_nobody(order: list[int]):
    plain = together(2, lambda partner: several(partner, False, [0, 1, 2, 3]))
    again = together(2, lambda partner: several(partner, True, order))

    for one, two in zip(plain, again, strict=True):
        assert one[0].tolist() == [8, 0]  # a meeting forward, one backward; nothing is kept
        assert len(one) == len(two) and all(map(torch.equal, one, two))


def test_partners_hold_the_same_statistics_to_the_bit():
    first, second = together(2, lambda partner: several(partner, False, [0, 1, 2, 3])[5:13])

    assert all(map(torch.equal, first, second))


def test_numbers_that_are_none_are_recalled_too():
    statistics = SyncStatistics(SingleReplica(), eps=1e-5, statistics=two_passes)
    given = torch.full((2, 3, 4, 4), torch.nan)
    joint = statistics.measure(given)

    assert statistics.recall(given) is joint


class Changing(SingleReplica):
    """A partner whose part is another one each time."""

    span = 2

    def __init__(self) -> None:
        self.meetings = 0

    def gather(self, part: Tensor) -> Tensor:
        self.meetings += 1
        return torch.stack([part, part + self.meetings])


def test_of_micro_batches_that_look_alike_here_the_oldest_is_recalled():
    statistics = SyncStatistics(Changing(), eps=1e-5, statistics=two_passes)
    given = noise(2, 3, 4, 4)
    measured = [statistics.measure(given) for _ in range(3)]
    recalled = []
    for joint in measured:
        recalled.append(statistics.recall(given))
        statistics.release(joint)

    assert recalled == measured
    assert not torch.equal(measured[0].mean, measured[1].mean)


def test_a_pass_computed_again_with_other_bits_is_noticed():
    statistics = SyncStatistics(SingleReplica(), eps=1e-5, statistics=two_passes)
    given = noise(2, 3, 4, 4)
    statistics.measure(given)

    with pytest.raises(NumericError, match=r"none of the 1 .*without --enable-recompute"):
        statistics.recall(given + 1e-9)


def test_what_never_goes_backward_is_forgotten_with_the_update():
    def one(partner: ThreadPartner) -> int:
        norm = norm_of(ours)
        norm.share_with(partner)
        norm(noise(3, CHANNELS, 4, 4))
        PendingStatistics([norm]).discard()
        return len(norm.sync.kept)

    assert together(2, one) == [0, 0]


def test_the_waiting_variance_is_unbiased_over_all_samples():
    given, _ = batch(2, torch.contiguous_format)

    def one(partner: ThreadPartner) -> tuple[Tensor, Tensor]:
        norm = norm_of(ours)
        norm.share_with(partner)
        norm(given.chunk(2)[partner.place])
        return norm.waiting[0]

    wide = given.transpose(0, 1).reshape(CHANNELS, -1)
    for mean, variance in together(2, one):
        torch.testing.assert_close(mean, wide.mean(1))
        torch.testing.assert_close(variance, wide.var(1, correction=1))
