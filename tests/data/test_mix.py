"""Mixup and cutmix: what becomes of images and labels, against plain numbers in 64 bits."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from convoy.config.sections.data import MixingConfig
from convoy.data.mix import UNMIXED, Box, Mix, Mixing
from convoy.rng import F64

SIDE = 12
CLASSES = 5
MIXUP = MixingConfig(mixup_alpha=0.4)
CUTMIX = MixingConfig(cutmix_lambda_low=0.2, cutmix_lambda_high=0.8)
BOTH = replace(CUTMIX, mixup_alpha=0.4)
ALL = {"mixup": MIXUP, "cutmix": CUTMIX, "both": BOTH}

every_kind = pytest.mark.parametrize("wish", ALL.values(), ids=ALL.keys())
every_size = pytest.mark.parametrize("samples", [2, 3, 4, 7])


def draw(wish: MixingConfig, number: int = 0, samples: int = 4, epoch: int = 0) -> Mix:
    return Mixing(wish, seed=3, side=SIDE).draw(epoch, number, samples)


def images(samples: int) -> F64:
    return np.random.default_rng(samples).normal(size=(samples, SIDE, SIDE, 3))


def mixed(mix: Mix, each: npt.NDArray[np.float64]) -> F64:
    """As the application does it: blend every entry with the one before, then cut."""
    made = each.astype(np.float64)
    samples, beyond = len(each), 1 if len(each) == 2 else 2
    if mix.own is not None:
        made = np.array(
            [mix.own[j] * made[j] + (1 - mix.own[j]) * made[j - 1] for j in range(samples)]
        )
    if mix.box is not None:
        (top, bottom), (left, right) = mix.box.rows, mix.box.columns
        mask = np.zeros((SIDE, SIDE), bool)
        mask[top:bottom, left:right] = True
        if each.ndim == 4:
            made = np.array(
                [np.where(mask[..., None], made[j - beyond], made[j]) for j in range(samples)]
            )
        else:
            kept = 1 - mask.mean()
            made = np.array(
                [kept * made[j] + (1 - kept) * made[j - beyond] for j in range(samples)]
            )
    return made


def target_of(mix: Mix, labels: list[int]) -> F64:
    """The labels and shares of a mix as one target for each class."""
    found, shares = mix.targets(torch.tensor(labels))
    assert found is not None
    target = np.zeros((len(labels), CLASSES))
    if shares is None:
        target[np.arange(len(labels)), found.numpy()] = 1
        return target
    for several, share in zip(found.numpy(), shares.double().numpy(), strict=True):
        target[np.arange(len(labels)), several] += share
    return target


@every_kind
@every_size
def test_images_are_mixed_as_the_formula_says(wish: MixingConfig, samples: int) -> None:
    each = images(samples)
    for number in range(20):
        mix = draw(wish, number, samples)
        found = mix.images(torch.from_numpy(each).float())

        # Three roundings of values up to 4.
        assert np.abs(found.numpy() - mixed(mix, each)).max() < 3 * 4 * 2.0**-24 * 2


@every_kind
@every_size
def test_labels_are_mixed_as_their_targets_would_be(wish: MixingConfig, samples: int) -> None:
    labels = [(3 * j + 1) % CLASSES for j in range(samples)]
    for number in range(20):
        mix = draw(wish, number, samples)
        expected = mixed(mix, np.eye(CLASSES)[labels])

        assert np.abs(target_of(mix, labels) - expected).max() < 4 * 2.0**-24


@every_kind
@every_size
def test_a_label_has_the_share_that_its_image_has(wish: MixingConfig, samples: int) -> None:
    """Image j is 1 in channel j alone: the mean of a channel is the share of an image."""
    marked = torch.eye(samples).view(samples, 1, 1, samples).expand(-1, SIDE, SIDE, -1)
    for number in range(20):
        mix = draw(wish, number, samples)
        seen = mix.images(marked).double().mean((1, 2)).numpy()
        labels, shares = mix.targets(torch.arange(samples))
        assert labels is not None and shares is not None
        told = np.zeros((samples, samples))
        for several, share in zip(labels.numpy(), shares.double().numpy(), strict=True):
            told[np.arange(samples), several] += share

        assert np.abs(seen - told).max() < 1e-6
        assert np.abs(told.sum(1) - 1).max() < 4 * 2.0**-24


@pytest.mark.parametrize(
    ("wish", "samples", "whose"),
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
def test_partners_are_so_many_places_before(
    wish: MixingConfig, samples: int, whose: list[int]
) -> None:
    found, shares = draw(wish, samples=samples).targets(torch.arange(samples))
    assert found is not None and shares is not None

    assert found.tolist() == [[(j - back) % samples for j in range(samples)] for back in whose]
    assert shares.shape == found.shape
    assert shares.dtype == torch.float32


@every_kind
def test_what_came_in_is_left_as_it_was(wish: MixingConfig) -> None:
    given, labels = torch.from_numpy(images(4)).float(), torch.arange(4)
    before = given.clone()
    mix = draw(wish)
    mix.images(given)
    mix.targets(labels)

    assert torch.equal(given, before)
    assert labels.tolist() == [0, 1, 2, 3]


@every_kind
def test_host_and_device_mix_to_the_same_bits(wish: MixingConfig) -> None:
    rows = torch.from_numpy(images(4)).float()
    here, there = draw(replace(wish, hostside_image_mixing=True)), draw(wish)
    on_host, on_device = here.images(rows), there.on_device(rows.permute(0, 3, 1, 2))

    assert torch.equal(on_host.permute(0, 3, 1, 2), on_device)
    assert on_device.is_contiguous(memory_format=torch.channels_last)
    assert here.on_device(rows) is rows


def test_a_box_is_cut_from_bytes_as_from_floats() -> None:
    pixels = torch.randint(256, (4, SIDE, SIDE, 3), dtype=torch.uint8)
    for number in range(20):
        cut = draw(CUTMIX, number).images(pixels)

        assert cut.dtype == torch.uint8
        assert torch.equal(cut.float(), draw(CUTMIX, number).images(pixels.float()))


@pytest.mark.parametrize(
    "mix",
    [
        UNMIXED.draw(0, 0, 4),
        draw(replace(CUTMIX, cutmix_disable_prob=1.0)),
        draw(MixingConfig(cutmix_lambda_low=1.0, cutmix_lambda_high=1.0)),
        draw(MixingConfig(cutmix_lambda_low=0.9999, cutmix_lambda_high=1.0)),  # a box of no pixel
    ],
)
def test_what_is_not_mixed_passes_untouched(mix: Mix) -> None:
    given, labels = torch.from_numpy(images(4)), torch.arange(4)

    assert mix.on_device(given) is given
    assert mix.images(given) is given
    assert mix.targets(labels) == (labels, None)
    assert mix.targets(None) == (None, None)


def test_a_cut_that_is_spared_leaves_mixup_alone() -> None:
    spared = draw(replace(BOTH, cutmix_disable_prob=1.0))
    alone = draw(MIXUP)
    labels = torch.arange(4)

    assert spared.box is None
    assert all(map(torch.equal, spared.targets(labels), alone.targets(labels)))


def test_a_box_as_large_as_the_image_gives_the_label_away() -> None:
    whole = Mix(4, box=Box((0, SIDE), (0, SIDE), SIDE))
    labels, shares = whole.targets(torch.arange(4))
    assert labels is not None and shares is not None

    assert shares.tolist() == [[0.0] * 4, [1.0] * 4]
    assert labels[1].tolist() == [2, 3, 0, 1]


def test_images_of_another_side_than_was_drawn_for_are_no_images_of_the_run() -> None:
    with pytest.raises(AssertionError):
        draw(CUTMIX).images(torch.zeros(4, SIDE + 1, SIDE + 1, 3))


def content(mix: Mix) -> tuple[object, ...]:
    return (mix.samples, None if mix.own is None else mix.own.tolist(), mix.box)


@every_kind
def test_a_draw_is_a_function_of_seed_epoch_and_number_alone(wish: MixingConfig) -> None:
    places = [(s, e, n) for s in range(3) for e in range(3) for n in range(3)]
    forward = [content(Mixing(wish, s, 512).draw(e, n, 3)) for s, e, n in places]
    backward = [content(Mixing(wish, s, 512).draw(e, n, 3)) for s, e, n in reversed(places)]

    assert forward == backward[::-1]
    assert len({str(one) for one in forward}) == len(places)


def test_the_shares_of_a_sample_do_not_depend_on_how_many_follow() -> None:
    few, many = draw(MIXUP, samples=3).own, draw(MIXUP, samples=8).own
    assert few is not None and many is not None

    assert few.tolist() == many[:3].tolist()


def test_shares_are_exact_in_the_numbers_that_images_are_multiplied_with() -> None:
    own = Mixing(MIXUP, 0, SIDE).draw(0, 0, 10_000).own
    assert own is not None

    assert (own.astype(np.float32) == own).all()
    assert ((1 - own).astype(np.float32) == 1 - own).all()
