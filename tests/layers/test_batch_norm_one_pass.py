"""Batch norm in one pass: equal on ordinary data, worse at a large mean; norms that own less."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.layers.norms import BatchNorm, PendingStatistics
from convoy.models.layers import NormSpec

CHANNELS, EPS = 5, 1e-3
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
OWN = pytest.mark.parametrize(
    ("scale", "offset"), [(True, True), (True, False), (False, True), (False, False)]
)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_norm(two_passes: bool, scale: bool = True, offset: bool = True) -> BatchNorm:
    """In 64 bits, with weights that are neither 0 nor 1."""
    planned = NormSpec(
        *(CHANNELS, "batch", 1, EPS, 0.1), scale=scale, offset=offset, two_passes=two_passes
    )
    norm = BatchNorm(planned).double()
    for seed, weight in enumerate(norm.parameters(), start=1):
        weight.data = noise(CHANNELS, seed=seed)
    return norm


def naive(norm: BatchNorm, given: Tensor) -> Tensor:
    """By the formula, which autograd can follow."""
    mean = given.mean((0, 2, 3), keepdim=True)
    variance = (given - mean).square().mean((0, 2, 3), keepdim=True)
    made = (given - mean) / (variance + EPS).sqrt()
    made = made if norm.weight is None else made * norm.weight.view(-1, 1, 1)
    return made if norm.bias is None else made + norm.bias.view(-1, 1, 1)


def passed(made: Tensor, given: Tensor, norm: BatchNorm) -> list[Tensor]:
    """What goes out of a norm in both directions."""
    upward = noise(*made.shape, seed=9)
    return [made, *torch.autograd.grad(made, [given, *norm.parameters()], upward)]


@LAYOUTS
@OWN
@pytest.mark.parametrize("two_passes", [False, True])
@pytest.mark.parametrize("size", [1, 4])
def test_a_norm_and_its_gradients_are_those_of_the_formula(
    size: int, two_passes: bool, scale: bool, offset: bool, layout: torch.memory_format
):
    norm = batch_norm(two_passes, scale, offset)
    given = (2 * noise(6, CHANNELS, size, size) + 1).to(memory_format=layout).requires_grad_()
    made = passed(norm(given), given, norm)

    assert len(made) == 2 + scale + offset
    expected = passed(naive(norm, given), given, norm)
    torch.testing.assert_close(made, expected, rtol=1e-9, atol=1e-9)


def test_both_ways_make_the_same_in_32_bits_on_ordinary_data():
    given = (2 * noise(6, CHANNELS, 8, 8) + 1).float()
    norms = [batch_norm(two_passes).float() for two_passes in (False, True)]
    made = [norm(given) for norm in norms]

    torch.testing.assert_close(made[0], made[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norms[0].waiting, norms[1].waiting, rtol=1e-4, atol=1e-4)


@LAYOUTS
@pytest.mark.parametrize("two_passes", [False, True])
def test_one_pass_loses_the_digits_of_a_large_mean_and_two_do_not(
    two_passes: bool, layout: torch.memory_format
):
    given = (noise(6, CHANNELS, 8, 8) + 3000).float().to(memory_format=layout)
    truth = batch_norm(True)(given.double())
    made = batch_norm(two_passes).float()(given)

    assert (float((made - truth).detach().abs().max()) < 1e-2) == two_passes


def test_a_variance_that_rounding_made_negative_counts_as_none():
    norm = batch_norm(False).float()
    made = norm(torch.full((3, CHANNELS, 7, 7), 5000.7))

    assert bool(torch.isfinite(made).all())
    assert bool((norm.waiting[0][1] >= 0).all())


def test_the_running_statistics_of_one_pass_are_those_of_torch():
    norm = batch_norm(False)
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    for micro in range(3):
        given = 2 * noise(6, CHANNELS, 4, 4, seed=micro) + micro
        norm(given)
        F.batch_norm(given, mean, variance, training=True, momentum=0.1)
    PendingStatistics([norm]).apply()

    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norm.running_var, variance, rtol=1e-6, atol=1e-6)


@OWN
def test_only_what_the_norm_owns_is_a_weight(scale: bool, offset: bool):
    norm = batch_norm(True, scale, offset)
    names = [name for name, own in (("weight", scale), ("bias", offset)) if own]

    assert list(dict(norm.named_parameters())) == names
    assert list(norm.state_dict()) == [*names, "running_mean", "running_var"]


@OWN
def test_evaluation_needs_nothing_that_the_norm_does_not_own(scale: bool, offset: bool):
    norm = batch_norm(True, scale, offset).eval()
    norm.running_mean.copy_(noise(CHANNELS, seed=4))
    norm.running_var.copy_(noise(CHANNELS, seed=5).square())
    given = noise(3, CHANNELS, 2, 2)
    mean, variance = (one.view(-1, 1, 1) for one in (norm.running_mean, norm.running_var))
    expected = (given - mean) / (variance + EPS).sqrt()
    expected = expected if norm.weight is None else expected * norm.weight.view(-1, 1, 1)
    expected = expected if norm.bias is None else expected + norm.bias.view(-1, 1, 1)

    torch.testing.assert_close(norm(given), expected, rtol=1e-10, atol=1e-10)


def test_the_first_variance_is_as_planned():
    norm = BatchNorm(NormSpec(CHANNELS, "batch", 1, EPS, 0.1, first_variance=0.0))

    assert not norm.running_var.any()


@pytest.mark.parametrize("two_passes", [False, True])
def test_a_single_pixel_has_the_same_bits_however_it_lies_in_memory(two_passes: bool):
    """Its two layouts differ in strides that reach nothing; kernels choose their way by them."""
    seen = []
    for steps in product((1, 64), repeat=2):
        norm = BatchNorm(NormSpec(64, "batch", 1, EPS, 0.1, two_passes=two_passes))
        given, upward = (
            torch.empty_strided((7, 64, 1, 1), (64, 1, step, step)).copy_(
                noise(7, 64, 1, 1, seed=seed)
            )
            for seed, step in enumerate(steps)
        )
        given.requires_grad_()
        made = norm(given)
        seen.append([made, *torch.autograd.grad(made, [given, *norm.parameters()], upward)])

    for other in seen[1:]:
        assert all(map(torch.equal, seen[0], other))
        assert [one.stride() for one in seen[0]] == [one.stride() for one in other]
