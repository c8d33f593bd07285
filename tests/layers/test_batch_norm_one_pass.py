"""Batch norm in one pass, and batch norms without scale or offset."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.layers.norms import BatchNorm, PendingStatistics
from convoy.models.layers import NormSpec

CHANNELS, EPS = 5, 1e-3
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
AFFINE = pytest.mark.parametrize(
    ("scale", "offset"), [(True, True), (True, False), (False, True), (False, False)]
)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_norm(stable: bool, scale: bool = True, offset: bool = True) -> BatchNorm:
    """A float64 norm with random weights."""
    spec = NormSpec(*(CHANNELS, "batch", 1, EPS, 0.1), scale=scale, offset=offset, stable=stable)
    norm = BatchNorm(spec).double()
    for seed, weight in enumerate(norm.parameters(), start=1):
        weight.data = noise(CHANNELS, seed=seed)
    return norm


def reference_norm(norm: BatchNorm, inputs: Tensor) -> Tensor:
    """The formula in operations that autograd differentiates."""
    mean = inputs.mean((0, 2, 3), keepdim=True)
    variance = (inputs - mean).square().mean((0, 2, 3), keepdim=True)
    outputs = (inputs - mean) / (variance + EPS).sqrt()
    outputs = outputs if norm.weight is None else outputs * norm.weight.view(-1, 1, 1)
    return outputs if norm.bias is None else outputs + norm.bias.view(-1, 1, 1)


def forward_backward(outputs: Tensor, inputs: Tensor, norm: BatchNorm) -> list[Tensor]:
    """The output and all gradients."""
    grad_output = noise(*outputs.shape, seed=9)
    return [outputs, *torch.autograd.grad(outputs, [inputs, *norm.parameters()], grad_output)]


@LAYOUTS
@AFFINE
@pytest.mark.parametrize("two_passes", [False, True])
@pytest.mark.parametrize("size", [1, 4])
def test_a_norm_and_its_gradients_match_the_formula(
    size: int, two_passes: bool, scale: bool, offset: bool, layout: torch.memory_format
):
    norm = batch_norm(two_passes, scale, offset)
    inputs = (2 * noise(6, CHANNELS, size, size) + 1).to(memory_format=layout).requires_grad_()
    outputs = forward_backward(norm(inputs), inputs, norm)

    assert len(outputs) == 2 + scale + offset
    expected = forward_backward(reference_norm(norm, inputs), inputs, norm)
    torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-9)


def test_one_and_two_passes_agree_in_fp32_on_ordinary_data():
    inputs = (2 * noise(6, CHANNELS, 8, 8) + 1).float()
    norms = [batch_norm(stable).float() for stable in (False, True)]
    outputs = [norm(inputs) for norm in norms]

    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        norms[0].pending_statistics, norms[1].pending_statistics, rtol=1e-4, atol=1e-4
    )


@LAYOUTS
@pytest.mark.parametrize("two_passes", [False, True])
def test_only_one_pass_loses_digits_with_a_large_mean(
    two_passes: bool, layout: torch.memory_format
):
    inputs = (noise(6, CHANNELS, 8, 8) + 3000).float().to(memory_format=layout)
    exact = batch_norm(True)(inputs.double())
    outputs = batch_norm(two_passes).float()(inputs)

    assert (float((outputs - exact).detach().abs().max()) < 1e-2) == two_passes


def test_a_variance_that_rounding_made_negative_is_clamped_to_zero():
    norm = batch_norm(False).float()
    outputs = norm(torch.full((3, CHANNELS, 7, 7), 5000.7))

    assert bool(torch.isfinite(outputs).all())
    assert bool((norm.pending_statistics[0][1] >= 0).all())


def test_the_running_statistics_of_one_pass_match_torch():
    norm = batch_norm(False)
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    for micro in range(3):
        inputs = 2 * noise(6, CHANNELS, 4, 4, seed=micro) + micro
        norm(inputs)
        F.batch_norm(inputs, mean, variance, training=True, momentum=0.1)
    PendingStatistics([norm]).apply()

    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norm.running_var, variance, rtol=1e-6, atol=1e-6)


@AFFINE
def test_only_the_scale_and_offset_of_a_norm_are_parameters(scale: bool, offset: bool):
    norm = batch_norm(True, scale, offset)
    names = [name for name, is_present in (("weight", scale), ("bias", offset)) if is_present]

    assert list(dict(norm.named_parameters())) == names
    assert list(norm.state_dict()) == [*names, "running_mean", "running_var"]


@AFFINE
def test_evaluation_uses_only_the_state_of_the_norm(scale: bool, offset: bool):
    norm = batch_norm(True, scale, offset).eval()
    norm.running_mean.copy_(noise(CHANNELS, seed=4))
    norm.running_var.copy_(noise(CHANNELS, seed=5).square())
    inputs = noise(3, CHANNELS, 2, 2)
    mean, variance = (item.view(-1, 1, 1) for item in (norm.running_mean, norm.running_var))
    expected = (inputs - mean) / (variance + EPS).sqrt()
    expected = expected if norm.weight is None else expected * norm.weight.view(-1, 1, 1)
    expected = expected if norm.bias is None else expected + norm.bias.view(-1, 1, 1)

    torch.testing.assert_close(norm(inputs), expected, rtol=1e-10, atol=1e-10)


def test_the_initial_running_variance_is_as_planned():
    norm = BatchNorm(NormSpec(CHANNELS, "batch", 1, EPS, 0.1, initial_running_var=0.0))

    assert not norm.running_var.any()


@pytest.mark.parametrize("stable", [False, True])
def test_a_single_pixel_has_the_same_bits_with_any_strides(stable: bool):
    """The strides of a single pixel are arbitrary, but kernels are selected by them."""
    results = []
    for strides in product((1, 64), repeat=2):
        norm = BatchNorm(NormSpec(64, "batch", 1, EPS, 0.1, stable=stable))
        inputs, grad_output = (
            torch.empty_strided((7, 64, 1, 1), (64, 1, stride, stride)).copy_(
                noise(7, 64, 1, 1, seed=seed)
            )
            for seed, stride in enumerate(strides)
        )
        inputs.requires_grad_()
        outputs = norm(inputs)
        results.append(
            [outputs, *torch.autograd.grad(outputs, [inputs, *norm.parameters()], grad_output)]
        )

    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
        assert [item.stride() for item in results[0]] == [item.stride() for item in other]
