"""Batch norm against torch with pending statistics; additions, pooling and padding."""

import pytest
import torch
from support.thread_replicas import ThreadPartner, run_in_threads
from torch import Tensor, nn

from convoy.layers.modules import Add, GlobalPool, PadChannels
from convoy.layers.norms import BatchNorm, PendingStatistics
from convoy.models.layers import NormSpec

CHANNELS = 5


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pair(momentum: float = 0.1) -> tuple[BatchNorm, nn.BatchNorm2d]:
    """The norms of convoy and torch with the same random weights."""
    actual = BatchNorm(NormSpec(CHANNELS, "batch", 1, eps=1e-3, momentum=momentum))
    reference = nn.BatchNorm2d(CHANNELS, eps=1e-3, momentum=momentum)
    for norm in (actual, reference):
        norm.weight.data = noise(CHANNELS, seed=1)
        norm.bias.data = noise(CHANNELS, seed=2)
    return actual, reference


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("momentum", [0.1, 0.03, 1.0])
def test_training_has_the_bits_of_torch_batch_norm(layout: torch.memory_format, momentum: float):
    actual, reference = pair(momentum)
    for micro in range(4):
        values = (3 * noise(6, CHANNELS, 4, 4, seed=micro) + 1).to(memory_format=layout)
        inputs, reference_inputs = values.clone().requires_grad_(), values.clone().requires_grad_()
        outputs, expected = actual(inputs), reference(reference_inputs)
        grad_output = noise(*outputs.shape, seed=10 + micro)
        outputs.backward(grad_output)
        expected.backward(grad_output)

        assert torch.equal(outputs, expected)
        assert inputs.grad is not None and reference_inputs.grad is not None
        assert torch.equal(inputs.grad, reference_inputs.grad)
    for name, weight in actual.named_parameters():
        assert weight.grad is not None

        assert torch.equal(weight.grad, reference.get_parameter(name).grad)


def test_running_statistics_after_several_micro_batches_match_torch():
    actual, reference = pair()
    for update in range(3):
        for micro in range(4):
            inputs = noise(6, CHANNELS, 4, 4, seed=10 * update + micro) * 2 + 1
            actual(inputs)
            reference(inputs)
        PendingStatistics([actual]).apply()

    torch.testing.assert_close(actual.running_mean, reference.running_mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(actual.running_var, reference.running_var, rtol=1e-6, atol=1e-7)


def test_evaluation_uses_the_running_statistics_as_torch_does():
    actual, reference = pair()
    for name in ("running_mean", "running_var"):
        values = noise(CHANNELS, seed=3).abs()
        actual.get_buffer(name).copy_(values)
        reference.get_buffer(name).copy_(values)
    inputs = noise(6, CHANNELS, 4, 4)
    actual.eval()
    reference.eval()

    assert torch.equal(actual(inputs), reference(inputs))
    assert actual.pending_statistics == []


def test_running_statistics_change_only_with_the_update():
    norm, _ = pair()
    norm(noise(6, CHANNELS, 4, 4))

    assert len(norm.pending_statistics) == 1
    assert torch.equal(norm.running_mean, torch.zeros(CHANNELS))
    assert torch.equal(norm.running_var, torch.ones(CHANNELS))


def test_pending_statistics_are_the_mean_and_unbiased_variance_of_the_micro_batch():
    norm, _ = pair()
    inputs = noise(6, CHANNELS, 4, 4) * 3 + 2
    norm(inputs)
    ((mean, variance),) = norm.pending_statistics
    by_channel = inputs.double().transpose(0, 1).reshape(CHANNELS, -1)

    torch.testing.assert_close(mean.double(), by_channel.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        variance.double(), by_channel.var(1, correction=1), rtol=1e-5, atol=1e-6
    )


def test_pending_statistics_are_applied_once_in_order():
    norms = [pair(momentum=0.25)[0] for _ in range(3)]
    batches = [noise(6, CHANNELS, 2, 2, seed=seed) + seed for seed in range(3)]
    for batch in batches:
        for scale, norm in enumerate(norms, start=1):
            norm(scale * batch)
    expected = [torch.zeros(CHANNELS) for _ in norms]
    for index, norm in enumerate(norms):
        for mean, _ in norm.pending_statistics:
            expected[index] = 0.75 * expected[index] + 0.25 * mean
    PendingStatistics(norms).apply()

    for norm, mean in zip(norms, expected, strict=True):
        torch.testing.assert_close(norm.running_mean, mean, rtol=1e-6, atol=1e-7)
    assert [norm.pending_statistics for norm in norms] == [[], [], []]


def statistics_after(partner: ThreadPartner, group: int) -> Tensor:
    """Two micro-batches of one of two partners, gathered with those of another span of two."""
    norm, _ = pair()
    norm.sync_with(partner)
    for micro in range(2):
        norm(joint_batch(group, micro).chunk(2)[partner.index])
    others = [pair()[1] for _ in range(2)]
    remote = []
    for micro, other in enumerate(others):
        other.momentum = 1.0
        other(joint_batch(1 - group, micro))
        remote.append(torch.cat([other.running_mean, other.running_var]))

    def gather(mine: Tensor) -> Tensor:
        spans = [mine, torch.stack(remote)] if group == 0 else [torch.stack(remote), mine]
        return torch.cat([rows for rows in spans for _ in range(2)])

    PendingStatistics([norm]).apply(gather)
    return torch.cat([norm.running_mean, norm.running_var])


def joint_batch(group: int, micro: int) -> Tensor:
    return noise(6, CHANNELS, 4, 4, seed=2 * group + micro) * (1 + micro) + group


@pytest.mark.parametrize("group", [0, 1])
def test_shared_statistics_of_a_micro_batch_are_applied_once(group: int):
    _, reference = pair()
    for span in range(2):
        for micro in range(2):
            reference(joint_batch(span, micro))
    expected = torch.cat([reference.running_mean, reference.running_var])
    for statistics in run_in_threads(2, lambda partner: statistics_after(partner, group)):
        torch.testing.assert_close(statistics, expected, rtol=1e-6, atol=1e-7)


def test_discarded_statistics_change_nothing():
    norm, _ = pair()
    norm(noise(6, CHANNELS, 4, 4))
    PendingStatistics([norm]).discard()
    PendingStatistics([norm]).apply()

    assert norm.pending_statistics == []
    assert torch.equal(norm.running_mean, torch.zeros(CHANNELS))


def test_a_network_without_norms_gathers_no_statistics():
    gathered: list[Tensor] = []
    PendingStatistics([]).apply(lambda rows: gathered.append(rows) or rows)
    PendingStatistics([]).discard()

    assert gathered == []


def test_norms_with_different_numbers_of_micro_batches_are_an_error():
    first, second = pair()[0], pair()[0]
    first(noise(6, CHANNELS, 4, 4))

    with pytest.raises(ValueError, match="zip"):
        PendingStatistics([first, second]).apply()


def test_names_match_torch_without_num_batches_tracked():
    actual, reference = pair()

    assert set(actual.state_dict()) == set(reference.state_dict()) - {"num_batches_tracked"}


def test_pad_channels_subsamples_and_appends_channels_of_zeros():
    inputs = noise(2, 3, 5, 5)
    outputs = PadChannels(stride=2, extra_channels=4)(inputs)

    assert outputs.shape == (2, 7, 3, 3)
    assert torch.equal(outputs[:, :3], inputs[:, :, [0, 2, 4]][..., [0, 2, 4]])
    assert not outputs[:, 3:].any()


def test_an_addition_does_not_modify_its_inputs():
    main, side = noise(2, 3, 4, 4), noise(2, 3, 4, 4, seed=1)
    copies = main.clone(), side.clone()

    assert torch.equal(Add()(main, side), main + side)
    assert torch.equal(main, copies[0]) and torch.equal(side, copies[1])


def test_the_global_pool_is_the_mean_over_the_image():
    inputs = noise(2, 3, 4, 4)
    outputs = GlobalPool()(inputs)

    assert outputs.shape == (2, 3)
    torch.testing.assert_close(outputs, nn.AdaptiveAvgPool2d(1)(inputs).flatten(1))


def test_a_frozen_norm_uses_the_running_statistics_and_records_none():
    frozen, evaluated = pair()[0], pair()[0]
    for norm in (frozen, evaluated):
        norm.running_mean += 0.5
    frozen.frozen = True
    evaluated.eval()
    images = noise(4, frozen.running_mean.numel(), 3, 3)

    assert torch.equal(frozen.train()(images), evaluated(images))
    assert frozen.pending_statistics == []
