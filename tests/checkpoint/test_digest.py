"""One SHA-256 for all weights."""

import hashlib

import torch

from convoy.checkpoint.digest import weights_sha256


def test_the_digest_is_over_sorted_names_types_shapes_and_bytes():
    tensors = {"b": torch.tensor([1, 2], dtype=torch.int16), "a": torch.tensor(1.0)}
    written = b'["a", "float32", []]\n\0\0\x80?["b", "int16", [2]]\n\1\0\2\0'

    assert weights_sha256(tensors) == hashlib.sha256(written).hexdigest()


def test_order_strides_and_gradients_do_not_change_the_digest():
    image = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    plain = {"a": image, "b": torch.zeros(0)}
    other = {
        "b": torch.zeros(0),
        "a": image.to(memory_format=torch.channels_last).requires_grad_(),
    }

    assert weights_sha256(plain) == weights_sha256(other)


def test_every_kind_of_difference_changes_the_digest():
    zeros = torch.zeros(4)
    one_bit = zeros.clone()
    one_bit.view(torch.int32)[2] = 1
    variants = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.reshape(2, 2)},
        {"a": zeros.to(torch.int32)},
        {"a": -zeros},
        {"a": one_bit},
        {"a": torch.zeros(2), "b": torch.zeros(2)},
        {},
    ]

    assert len({weights_sha256(variant) for variant in variants}) == len(variants)


def test_types_that_numpy_does_not_know_have_a_digest():
    half = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(2, dtype=torch.bool)}

    assert len(weights_sha256(half)) == 64
