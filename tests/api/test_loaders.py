"""create_loader: the training data of a run as an iterable."""

import pytest
import torch

import convoy
from convoy.errors import ConfigError

OPTIONS = {"data": "shapes", "samples": 64, "micro_batch_size": 8, "image_size": 16, "epochs": 2}


def test_a_loader_yields_the_micro_batches_of_all_epochs() -> None:
    loader = convoy.create_loader(**OPTIONS)
    batches = list(loader)

    assert len(batches) == len(loader) == 16
    assert {(images.shape, labels.shape) for images, labels in batches} == {((8, 3, 16, 16), (8,))}
    assert int(max(labels.max() for _, labels in batches)) < len(loader.classes)
    assert not torch.equal(batches[0][0], batches[8][0])  # another order in the second epoch


def test_an_accumulated_update_counts_each_of_its_micro_batches() -> None:
    loader = convoy.create_loader(**OPTIONS, gradient_accumulation=2)

    assert len(loader) == len(list(loader)) == 16


def test_a_loader_gives_the_same_data_again_but_not_for_another_seed() -> None:
    images = [next(iter(convoy.create_loader(**OPTIONS, seed=seed)))[0] for seed in (1, 1, 2)]

    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])


def test_mixed_labels_come_with_their_weights() -> None:
    images, labels, weights = next(iter(convoy.create_loader(**OPTIONS, mixup_alpha=0.4)))

    assert labels.shape == weights.shape == (2, len(images))
    torch.testing.assert_close(weights.sum(0), torch.ones(len(images)), check_dtype=False)


def test_an_infeed_reads_a_loader_and_restores_its_position() -> None:
    infeed = convoy.Infeed(convoy.create_loader(**OPTIONS))
    for _ in range(3):
        infeed.next()
    state = infeed.state_dict()
    expected = infeed.next()
    again = convoy.Infeed(convoy.create_loader(**OPTIONS))
    again.load_state_dict(state)

    assert all(map(torch.equal, again.next(), expected))


def test_a_loader_leaves_the_settings_of_torch_unchanged() -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    convoy.create_loader(**OPTIONS)

    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_data_without_a_loader_is_refused() -> None:
    with pytest.raises(ConfigError, match="synthetic"):
        convoy.create_loader(data="synthetic")
