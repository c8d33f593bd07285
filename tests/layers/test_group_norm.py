"""Group norm against a loop over samples and groups, with contiguous and interleaved groups."""

import pytest
import torch
from torch import Tensor

from convoy.layers.norms import GroupNorm
from convoy.models.layers import NormSpec

CHANNELS, GROUPS, EPS = 12, 3, 0.1
INTERLEAVED = pytest.mark.parametrize("interleaved", [False, True])
PASSES = pytest.mark.parametrize("two_passes", [False, True])
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
# No norm has only an offset: the backward of torch does not support it.
AFFINE = pytest.mark.parametrize(("scale", "offset"), [(True, True), (True, False), (False, False)])


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def group_norm(
    interleaved: bool, two_passes: bool, scale: bool = True, offset: bool = True
) -> GroupNorm:
    """A float64 norm with random weights."""
    spec = NormSpec(
        *(CHANNELS, "group", GROUPS, EPS, 0.1),
        scale=scale,
        offset=offset,
        interleaved_groups=interleaved,
        stable=two_passes,
    )
    norm = GroupNorm(spec).double()
    for seed, weight in enumerate(norm.parameters(), start=1):
        weight.data = noise(CHANNELS, seed=seed)
    return norm


def channels_of_group(group: int, interleaved: bool) -> list[int]:
    size = CHANNELS // GROUPS
    return [
        channel
        for channel in range(CHANNELS)
        if (channel % GROUPS if interleaved else channel // size) == group
    ]


def reference_norm(norm: GroupNorm, inputs: Tensor, interleaved: bool) -> Tensor:
    """A loop over samples and groups."""
    samples = []
    for sample in inputs:
        channels: dict[int, Tensor] = {}
        for group in range(GROUPS):
            group_channels = channels_of_group(group, interleaved)
            values = torch.stack([sample[channel] for channel in group_channels])
            mean = values.sum() / values.numel()
            variance = ((values - mean) ** 2).sum() / values.numel()
            for channel in group_channels:
                outputs = (sample[channel] - mean) / (variance + EPS) ** 0.5
                outputs = outputs if norm.weight is None else outputs * norm.weight[channel]
                channels[channel] = outputs if norm.bias is None else outputs + norm.bias[channel]
        samples.append(torch.stack([channels[channel] for channel in range(CHANNELS)]))
    return torch.stack(samples)


def forward_backward(outputs: Tensor, inputs: Tensor, norm: GroupNorm) -> list[Tensor]:
    """The output and all gradients."""
    grad_output = noise(*outputs.shape, seed=9)
    return [outputs, *torch.autograd.grad(outputs, [inputs, *norm.parameters()], grad_output)]


@LAYOUTS
@AFFINE
@PASSES
@INTERLEAVED
def test_a_group_norm_matches_a_naive_implementation(
    interleaved: bool, two_passes: bool, scale: bool, offset: bool, layout: torch.memory_format
):
    norm = group_norm(interleaved, two_passes, scale, offset)
    inputs = (2 * noise(2, CHANNELS, 3, 5) + 1).to(memory_format=layout).requires_grad_()
    expected = forward_backward(reference_norm(norm, inputs, interleaved), inputs, norm)
    outputs = forward_backward(norm(inputs), inputs, norm)

    assert len(outputs) == 2 + scale + offset
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)


@INTERLEAVED
def test_one_and_two_passes_agree_in_fp32_on_ordinary_data(interleaved: bool):
    inputs = (2 * noise(4, CHANNELS, 6, 6) + 1).float()
    outputs = [group_norm(interleaved, passes).float()(inputs) for passes in (False, True)]

    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)


@PASSES
@INTERLEAVED
def test_only_one_pass_loses_digits_with_a_large_mean(interleaved: bool, two_passes: bool):
    inputs = (noise(4, CHANNELS, 6, 6) + 3000).float().to(memory_format=torch.channels_last)
    exact = group_norm(interleaved, True)(inputs.double())
    difference = float(
        (group_norm(interleaved, two_passes).float()(inputs) - exact).detach().abs().max()
    )

    assert (difference < 1e-2) == two_passes


@INTERLEAVED
def test_a_variance_that_rounding_made_negative_is_clamped_to_zero(interleaved: bool):
    image = torch.linspace(1000, 9000, 64).view(-1, 1, 1, 1).expand(-1, CHANNELS, 5, 5)
    inputs = image.contiguous(memory_format=torch.channels_last)

    assert bool(torch.isfinite(group_norm(interleaved, False).float()(inputs)).all())


@PASSES
def test_interleaved_groups_differ_from_contiguous_ones(two_passes: bool):
    inputs = noise(2, CHANNELS, 3, 3) * torch.arange(1, CHANNELS + 1).view(-1, 1, 1)
    outputs = [group_norm(interleaved, two_passes)(inputs) for interleaved in (False, True)]

    assert not torch.allclose(outputs[0], outputs[1], atol=0.1)


@pytest.mark.parametrize("groups", [1, CHANNELS])
def test_interleaving_has_no_effect_with_one_group_or_single_channels(groups: int):
    inputs = noise(2, CHANNELS, 3, 3)
    outputs = [
        GroupNorm(
            NormSpec(CHANNELS, "group", groups, EPS, 0.1, interleaved_groups=interleaved)
        ).double()(inputs)
        for interleaved in (False, True)
    ]

    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)


@AFFINE
def test_only_the_scale_and_offset_of_a_norm_are_parameters(scale: bool, offset: bool):
    norm = group_norm(interleaved=False, two_passes=True, scale=scale, offset=offset)
    names = [name for name, is_present in (("weight", scale), ("bias", offset)) if is_present]

    assert list(dict(norm.named_parameters())) == list(norm.state_dict()) == names


@PASSES
@INTERLEAVED
def test_outputs_are_channels_last(interleaved: bool, two_passes: bool):
    inputs = noise(2, CHANNELS, 4, 4).to(memory_format=torch.channels_last)

    outputs = group_norm(interleaved, two_passes)(inputs)

    assert outputs.is_contiguous(memory_format=torch.channels_last)
