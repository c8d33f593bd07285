"""Mixup and cutmix of images and labels, compared with a float64 reference."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from convoy.config.sections.data import MixingConfig
from convoy.data.mix import NO_MIXING, CutmixBox, Mix, Mixing
from convoy.rng import F64

SIDE = 12
CLASSES = 5
MIXUP = MixingConfig(mixup_alpha=0.4)
CUTMIX = MixingConfig(cutmix_lambda_low=0.2, cutmix_lambda_high=0.8)
BOTH = replace(CUTMIX, mixup_alpha=0.4)
MIXINGS = {"mixup": MIXUP, "cutmix": CUTMIX, "both": BOTH}

with_each_mixing = pytest.mark.parametrize("mixing", MIXINGS.values(), ids=MIXINGS.keys())
with_each_size = pytest.mark.parametrize("samples", [2, 3, 4, 7])


def draw(mixing: MixingConfig, number: int = 0, samples: int = 4, epoch: int = 0) -> Mix:
    mix = Mixing(mixing, seed=3, image_size=SIDE).sample(epoch, number, samples)
    assert mix is not None
    return mix


def images(samples: int) -> F64:
    return np.random.default_rng(samples).normal(size=(samples, SIDE, SIDE, 3))


def mixed_by_formula(mix: Mix, inputs: npt.NDArray[np.float64]) -> F64:
    """The formula of the reference: blend each entry with the one before it, then paste the box."""
    output = inputs.astype(np.float64)
    samples, distance = len(inputs), 1 if len(inputs) == 2 else 2
    if mix.mixup_lambda is not None:
        output = np.array(
            [
                mix.mixup_lambda[j] * output[j] + (1 - mix.mixup_lambda[j]) * output[j - 1]
                for j in range(samples)
            ]
        )
    if mix.box is not None:
        (top, bottom), (left, right) = mix.box.rows, mix.box.columns
        mask = np.zeros((SIDE, SIDE), bool)
        mask[top:bottom, left:right] = True
        if inputs.ndim == 4:
            output = np.array(
                [np.where(mask[..., None], output[j - distance], output[j]) for j in range(samples)]
            )
        else:
            lam = 1 - mask.mean()
            output = np.array(
                [lam * output[j] + (1 - lam) * output[j - distance] for j in range(samples)]
            )
    return output


def target_of(mix: Mix, labels: list[int]) -> F64:
    """The mixed labels and weights as dense targets."""
    found = mix.mix_targets(torch.tensor(labels))
    target = np.zeros((len(labels), CLASSES))
    for row, share in zip(found.labels.numpy(), found.weights.double().numpy(), strict=True):
        target[np.arange(len(labels)), row] += share
    return target


@with_each_mixing
@with_each_size
def test_images_are_mixed_by_the_formula(mixing: MixingConfig, samples: int) -> None:
    inputs = images(samples)
    for number in range(20):
        mix = draw(mixing, number, samples)
        found = mix.apply(torch.from_numpy(inputs).float())

        # The error of three roundings of values up to 4.
        assert np.abs(found.numpy() - mixed_by_formula(mix, inputs)).max() < 3 * 4 * 2.0**-24 * 2


@with_each_mixing
@with_each_size
def test_labels_are_mixed_like_one_hot_targets(mixing: MixingConfig, samples: int) -> None:
    labels = [(3 * j + 1) % CLASSES for j in range(samples)]
    for number in range(20):
        mix = draw(mixing, number, samples)
        expected = mixed_by_formula(mix, np.eye(CLASSES)[labels])

        assert np.abs(target_of(mix, labels) - expected).max() < 4 * 2.0**-24


@with_each_mixing
@with_each_size
def test_a_label_has_the_weight_of_its_image(mixing: MixingConfig, samples: int) -> None:
    """Image j is 1 in channel j and 0 in others, so the mean of channel j is its share."""
    marked = torch.eye(samples).view(samples, 1, 1, samples).expand(-1, SIDE, SIDE, -1)
    for number in range(20):
        mix = draw(mixing, number, samples)
        seen = mix.apply(marked).double().mean((1, 2)).numpy()
        found = mix.mix_targets(torch.arange(samples))
        expected = np.zeros((samples, samples))
        for row, share in zip(found.labels.numpy(), found.weights.double().numpy(), strict=True):
            expected[np.arange(samples), row] += share

        assert np.abs(seen - expected).max() < 1e-6
        assert np.abs(expected.sum(1) - 1).max() < 4 * 2.0**-24


@pytest.mark.parametrize(
    ("mixing", "samples", "distances"),
    [
        (MIXUP, 5, [0, 1]),
        (CUTMIX, 5, [0, 2]),
        (BOTH, 5, [0, 1, 2, 3]),
        (BOTH, 3, [0, 1, 2, 3]),  # the third image before it is the image itself
        (MIXUP, 2, [0, 1]),
        (CUTMIX, 2, [0, 1]),  # the second image before it would be the image itself
        (BOTH, 2, [0, 1, 1, 2]),
    ],
)
def test_partners_are_at_fixed_distances(
    mixing: MixingConfig, samples: int, distances: list[int]
) -> None:
    found = draw(mixing, samples=samples).mix_targets(torch.arange(samples))
    partners = [[(j - distance) % samples for j in range(samples)] for distance in distances]

    assert found.labels.tolist() == partners
    assert found.weights.shape == found.labels.shape
    assert found.weights.dtype == torch.float32


@with_each_mixing
def test_the_input_is_not_modified(mixing: MixingConfig) -> None:
    values, labels = torch.from_numpy(images(4)).float(), torch.arange(4)
    before = values.clone()
    mix = draw(mixing)
    mix.apply(values)
    mix.mix_targets(labels)

    assert torch.equal(values, before)
    assert labels.tolist() == [0, 1, 2, 3]


@with_each_mixing
def test_host_and_device_mix_to_the_same_bits(mixing: MixingConfig) -> None:
    rows = torch.from_numpy(images(4)).float()
    mix = draw(mixing)
    on_host, on_device = mix.apply(rows), mix.apply_channels_first(rows.permute(0, 3, 1, 2))

    assert torch.equal(on_host.permute(0, 3, 1, 2), on_device)
    assert on_device.is_contiguous(memory_format=torch.channels_last)


def test_cutmix_of_bytes_equals_cutmix_of_floats() -> None:
    pixels = torch.randint(256, (4, SIDE, SIDE, 3), dtype=torch.uint8)
    for number in range(20):
        cut = draw(CUTMIX, number).apply(pixels)

        assert cut.dtype == torch.uint8
        assert torch.equal(cut.float(), draw(CUTMIX, number).apply(pixels.float()))


@pytest.mark.parametrize(
    "mixing",
    [
        NO_MIXING.config,
        replace(CUTMIX, cutmix_disable_prob=1.0),
        MixingConfig(cutmix_lambda_low=1.0, cutmix_lambda_high=1.0),
        MixingConfig(cutmix_lambda_low=0.9999, cutmix_lambda_high=1.0),  # a box without a pixel
    ],
)
def test_nothing_is_sampled_without_mixing(mixing: MixingConfig) -> None:
    assert Mixing(mixing, seed=3, image_size=SIDE).sample(0, 0, 4) is None


def test_a_skipped_cutmix_leaves_mixup_unchanged() -> None:
    skipped = draw(replace(BOTH, cutmix_disable_prob=1.0))
    mixup_only = draw(MIXUP)
    actual, expected = skipped.mix_targets(torch.arange(4)), mixup_only.mix_targets(torch.arange(4))

    assert skipped.box is None
    assert torch.equal(actual.labels, expected.labels) and torch.equal(
        actual.weights, expected.weights
    )


def test_a_box_as_large_as_the_image_replaces_the_label() -> None:
    full = Mix(4, box=CutmixBox((0, SIDE), (0, SIDE), SIDE))
    found = full.mix_targets(torch.arange(4))

    assert found.weights.tolist() == [[0.0] * 4, [1.0] * 4]
    assert found.labels[1].tolist() == [2, 3, 0, 1]


def test_images_of_the_wrong_size_are_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        draw(CUTMIX).apply(torch.zeros(4, SIDE + 1, SIDE + 1, 3))


def content(mix: Mix | None) -> tuple[object, ...] | None:
    return mix and (
        mix.samples,
        None if mix.mixup_lambda is None else mix.mixup_lambda.tolist(),
        mix.box,
    )


@with_each_mixing
def test_sampling_is_a_function_of_seed_epoch_and_number(mixing: MixingConfig) -> None:
    counters = [(s, e, n) for s in range(3) for e in range(3) for n in range(3)]
    forward = [content(Mixing(mixing, s, 512).sample(e, n, 3)) for s, e, n in counters]
    backward = [content(Mixing(mixing, s, 512).sample(e, n, 3)) for s, e, n in reversed(counters)]

    assert forward == backward[::-1]
    assert len({str(mix) for mix in forward}) == len(counters)


def test_mixup_lambda_does_not_depend_on_the_number_of_samples() -> None:
    few, many = draw(MIXUP, samples=3).mixup_lambda, draw(MIXUP, samples=8).mixup_lambda
    assert few is not None and many is not None

    assert few.tolist() == many[:3].tolist()


def test_mixup_lambda_is_exact_in_float32() -> None:
    lam = draw(MIXUP, samples=10_000).mixup_lambda
    assert lam is not None

    assert (lam.astype(np.float32) == lam).all()
    assert ((1 - lam).astype(np.float32) == 1 - lam).all()
