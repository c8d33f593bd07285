"""Mixup and cutmix: what becomes of images and labels, against plain numbers in 64 bits."""

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
ALL = {"mixup": MIXUP, "cutmix": CUTMIX, "both": BOTH}

every_kind = pytest.mark.parametrize("mixing", ALL.values(), ids=ALL.keys())
every_size = pytest.mark.parametrize("samples", [2, 3, 4, 7])


def draw(mixing: MixingConfig, number: int = 0, samples: int = 4, epoch: int = 0) -> Mix:
    mix = Mixing(mixing, seed=3, image_size=SIDE).sample(epoch, number, samples)
    assert mix is not None
    return mix


def images(samples: int) -> F64:
    return np.random.default_rng(samples).normal(size=(samples, SIDE, SIDE, 3))


def mixed(mix: Mix, each: npt.NDArray[np.float64]) -> F64:
    """As the application does it: blend every entry with the one before, then cut."""
    output = each.astype(np.float64)
    samples, beyond = len(each), 1 if len(each) == 2 else 2
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
        if each.ndim == 4:
            output = np.array(
                [np.where(mask[..., None], output[j - beyond], output[j]) for j in range(samples)]
            )
        else:
            saved = 1 - mask.mean()
            output = np.array(
                [saved * output[j] + (1 - saved) * output[j - beyond] for j in range(samples)]
            )
    return output


def target_of(mix: Mix, labels: list[int]) -> F64:
    """The labels and shares of a mix as one target for each class."""
    found = mix.mix_targets(torch.tensor(labels))
    target = np.zeros((len(labels), CLASSES))
    for several, share in zip(found.labels.numpy(), found.weights.double().numpy(), strict=True):
        target[np.arange(len(labels)), several] += share
    return target


@every_kind
@every_size
def test_images_are_mixed_by_the_formula(mixing: MixingConfig, samples: int) -> None:
    each = images(samples)
    for number in range(20):
        mix = draw(mixing, number, samples)
        found = mix.apply(torch.from_numpy(each).float())

        # Three roundings of values up to 4.
        assert np.abs(found.numpy() - mixed(mix, each)).max() < 3 * 4 * 2.0**-24 * 2


@every_kind
@every_size
def test_labels_are_mixed_like_one_hot_targets(mixing: MixingConfig, samples: int) -> None:
    labels = [(3 * j + 1) % CLASSES for j in range(samples)]
    for number in range(20):
        mix = draw(mixing, number, samples)
        expected = mixed(mix, np.eye(CLASSES)[labels])

        assert np.abs(target_of(mix, labels) - expected).max() < 4 * 2.0**-24


@every_kind
@every_size
def test_a_label_has_the_weight_of_its_image(mixing: MixingConfig, samples: int) -> None:
    """Image j is 1 in channel j alone: the mean of a channel is the share of an image."""
    marked = torch.eye(samples).view(samples, 1, 1, samples).expand(-1, SIDE, SIDE, -1)
    for number in range(20):
        mix = draw(mixing, number, samples)
        seen = mix.apply(marked).double().mean((1, 2)).numpy()
        found = mix.mix_targets(torch.arange(samples))
        message = np.zeros((samples, samples))
        for several, share in zip(
            found.labels.numpy(), found.weights.double().numpy(), strict=True
        ):
            message[np.arange(samples), several] += share

        assert np.abs(seen - message).max() < 1e-6
        assert np.abs(message.sum(1) - 1).max() < 4 * 2.0**-24


@pytest.mark.parametrize(
    ("mixing", "samples", "whose"),
    [
        (MIXUP, 5, [0, 1]),
        (CUTMIX, 5, [0, 2]),
        (BOTH, 5, [0, 1, 2, 3]),
        (BOTH, 3, [0, 1, 2, 3]),  # the third one before it is the image itself
        (MIXUP, 2, [0, 1]),
        (CUTMIX, 2, [0, 1]),  # two before it would be the image itself
        (BOTH, 2, [0, 1, 1, 2]),
    ],
)
def test_partners_are_at_fixed_distances(
    mixing: MixingConfig, samples: int, whose: list[int]
) -> None:
    found = draw(mixing, samples=samples).mix_targets(torch.arange(samples))
    partners = [[(j - back) % samples for j in range(samples)] for back in whose]

    assert found.labels.tolist() == partners
    assert found.weights.shape == found.labels.shape
    assert found.weights.dtype == torch.float32


@every_kind
def test_the_input_is_not_modified(mixing: MixingConfig) -> None:
    values, labels = torch.from_numpy(images(4)).float(), torch.arange(4)
    before = values.clone()
    mix = draw(mixing)
    mix.apply(values)
    mix.mix_targets(labels)

    assert torch.equal(values, before)
    assert labels.tolist() == [0, 1, 2, 3]


@every_kind
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
        MixingConfig(cutmix_lambda_low=0.9999, cutmix_lambda_high=1.0),  # a box of no pixel
    ],
)
def test_nothing_is_sampled_without_mixing(mixing: MixingConfig) -> None:
    assert Mixing(mixing, seed=3, image_size=SIDE).sample(0, 0, 4) is None


def test_a_skipped_cutmix_leaves_mixup_unchanged() -> None:
    spared = draw(replace(BOTH, cutmix_disable_prob=1.0))
    alone = draw(MIXUP)
    ours, theirs = spared.mix_targets(torch.arange(4)), alone.mix_targets(torch.arange(4))

    assert spared.box is None
    assert torch.equal(ours.labels, theirs.labels) and torch.equal(ours.weights, theirs.weights)


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


@every_kind
def test_sampling_is_a_function_of_seed_epoch_and_number(mixing: MixingConfig) -> None:
    places = [(s, e, n) for s in range(3) for e in range(3) for n in range(3)]
    forward = [content(Mixing(mixing, s, 512).sample(e, n, 3)) for s, e, n in places]
    backward = [content(Mixing(mixing, s, 512).sample(e, n, 3)) for s, e, n in reversed(places)]

    assert forward == backward[::-1]
    assert len({str(item) for item in forward}) == len(places)


def test_mixup_lambda_does_not_depend_on_the_number_of_samples() -> None:
    few, many = draw(MIXUP, samples=3).mixup_lambda, draw(MIXUP, samples=8).mixup_lambda
    assert few is not None and many is not None

    assert few.tolist() == many[:3].tolist()


def test_mixup_lambda_is_exact_in_float32() -> None:
    local = draw(MIXUP, samples=10_000).mixup_lambda
    assert local is not None

    assert (local.astype(np.float32) == local).all()
    assert ((1 - local).astype(np.float32) == 1 - local).all()
