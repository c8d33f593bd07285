"""Group norm against a loop over samples and groups; strided groups; one pass and two."""

import pytest
import torch
from torch import Tensor

from convoy.layers.norms import GroupNorm
from convoy.models.layers import NormSpec

CHANNELS, GROUPS, EPS = 12, 3, 0.1
STRIDED = pytest.mark.parametrize("strided", [False, True])
PASSES = pytest.mark.parametrize("two_passes", [False, True])
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
# No norm has an offset alone; torch's own could not go backward.
OWN = pytest.mark.parametrize(("scale", "offset"), [(True, True), (True, False), (False, False)])


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def group_norm(
    strided: bool, two_passes: bool, scale: bool = True, offset: bool = True
) -> GroupNorm:
    """In 64 bits, with weights that are neither 0 nor 1."""
    spec = NormSpec(
        *(CHANNELS, "group", GROUPS, EPS, 0.1),
        scale=scale,
        offset=offset,
        interleaved_groups=strided,
        stable=two_passes,
    )
    norm = GroupNorm(spec).double()
    for seed, weight in enumerate(norm.parameters(), start=1):
        weight.data = noise(CHANNELS, seed=seed)
    return norm


def members(group: int, strided: bool) -> list[int]:
    """The channels of a group."""
    size = CHANNELS // GROUPS
    return [
        channel
        for channel in range(CHANNELS)
        if (channel % GROUPS if strided else channel // size) == group
    ]


def reference_norm(norm: GroupNorm, inputs: Tensor, strided: bool) -> Tensor:
    """One sample and one group after the other."""
    samples = []
    for sample in inputs:
        channels: dict[int, Tensor] = {}
        for group in range(GROUPS):
            inside = members(group, strided)
            values = torch.stack([sample[channel] for channel in inside])
            mean = values.sum() / values.numel()
            variance = ((values - mean) ** 2).sum() / values.numel()
            for channel in inside:
                outputs = (sample[channel] - mean) / (variance + EPS) ** 0.5
                outputs = outputs if norm.weight is None else outputs * norm.weight[channel]
                channels[channel] = outputs if norm.bias is None else outputs + norm.bias[channel]
        samples.append(torch.stack([channels[channel] for channel in range(CHANNELS)]))
    return torch.stack(samples)


def forward_backward(outputs: Tensor, inputs: Tensor, norm: GroupNorm) -> list[Tensor]:
    """What goes out of a norm in both directions."""
    grad_output = noise(*outputs.shape, seed=9)
    return [outputs, *torch.autograd.grad(outputs, [inputs, *norm.parameters()], grad_output)]


@LAYOUTS
@OWN
@PASSES
@STRIDED
def test_a_group_norm_matches_a_naive_implementation(
    strided: bool, two_passes: bool, scale: bool, offset: bool, layout: torch.memory_format
):
    norm = group_norm(strided, two_passes, scale, offset)
    inputs = (2 * noise(2, CHANNELS, 3, 5) + 1).to(memory_format=layout).requires_grad_()
    expected = forward_backward(reference_norm(norm, inputs, strided), inputs, norm)
    outputs = forward_backward(norm(inputs), inputs, norm)

    assert len(outputs) == 2 + scale + offset
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)


@STRIDED
def test_one_and_two_passes_agree_in_fp32_on_ordinary_data(strided: bool):
    inputs = (2 * noise(4, CHANNELS, 6, 6) + 1).float()
    outputs = [group_norm(strided, passes).float()(inputs) for passes in (False, True)]

    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)


@PASSES
@STRIDED
def test_only_one_pass_loses_digits_with_a_large_mean(strided: bool, two_passes: bool):
    inputs = (noise(4, CHANNELS, 6, 6) + 3000).float().to(memory_format=torch.channels_last)
    truth = group_norm(strided, True)(inputs.double())
    apart = float((group_norm(strided, two_passes).float()(inputs) - truth).detach().abs().max())

    assert (apart < 1e-2) == two_passes


@STRIDED
def test_a_variance_that_rounding_made_negative_is_clamped_to_zero(strided: bool):
    image = torch.linspace(1000, 9000, 64).view(-1, 1, 1, 1).expand(-1, CHANNELS, 5, 5)
    inputs = image.contiguous(memory_format=torch.channels_last)

    assert bool(torch.isfinite(group_norm(strided, False).float()(inputs)).all())


@PASSES
def test_interleaved_groups_differ_from_contiguous_ones(two_passes: bool):
    inputs = noise(2, CHANNELS, 3, 3) * torch.arange(1, CHANNELS + 1).view(-1, 1, 1)
    outputs = [
        group_norm(interleaved_groups, two_passes)(inputs) for interleaved_groups in (False, True)
    ]

    assert not torch.allclose(outputs[0], outputs[1], atol=0.1)


@pytest.mark.parametrize("groups", [1, CHANNELS])
def test_interleaving_has_no_effect_with_one_group_or_single_channels(groups: int):
    inputs = noise(2, CHANNELS, 3, 3)
    outputs = [
        GroupNorm(
            NormSpec(CHANNELS, "group", groups, EPS, 0.1, interleaved_groups=interleaved_groups)
        ).double()(inputs)
        for interleaved_groups in (False, True)
    ]

    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)


@OWN
def test_only_the_scale_and_offset_of_a_norm_are_parameters(scale: bool, offset: bool):
    norm = group_norm(strided=False, two_passes=True, scale=scale, offset=offset)
    names = [name for name, local in (("weight", scale), ("bias", offset)) if local]

    assert list(dict(norm.named_parameters())) == list(norm.state_dict()) == names


@PASSES
@STRIDED
def test_outputs_are_channels_last(strided: bool, two_passes: bool):
    inputs = noise(2, CHANNELS, 4, 4).to(memory_format=torch.channels_last)

    outputs = group_norm(strided, two_passes)(inputs)

    assert outputs.is_contiguous(memory_format=torch.channels_last)
