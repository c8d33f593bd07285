"""The contents of a checkpoint: copies, SHA-256, and comparison with a model."""

import hashlib

import pytest
import torch
from support.checkpoint_samples import fingerprint, small

from convoy.checkpoint.format import CheckpointContents, check_match, weights_sha256
from convoy.errors import CheckpointError


def test_a_copy_is_independent_of_later_training():
    contents = small()
    before = fingerprint(small())
    copy = contents.copy()
    for tensors in (contents.model, contents.optimizer, contents.averages):
        for tensor in tensors.values():
            tensor.add_(1)
    contents.state["meters"]["loss"] = 9.0

    assert fingerprint(copy) == before


def test_a_copy_of_parameters_has_no_gradient_and_is_contiguous():
    weight = torch.nn.Parameter(torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last))
    copy = CheckpointContents(model={"w": weight}, state={"update": 0}).copy().model["w"]

    assert (copy.requires_grad, copy.is_contiguous(), copy.equal(weight)) == (False, True, True)


def test_tied_weights_are_copied_under_both_names():
    weight = torch.ones(3)
    copy = CheckpointContents(model={"a": weight, "b": weight}).copy().model

    assert copy["a"].data_ptr() != copy["b"].data_ptr()


def test_a_second_copy_uses_the_memory_of_the_first():
    first = small(1).copy()
    addresses = {name: tensor.data_ptr() for name, tensor in first.model.items()}
    second = small(2).copy(reuse=first)

    assert {name: tensor.data_ptr() for name, tensor in second.model.items()} == addresses
    assert fingerprint(second) == fingerprint(small(2))


@pytest.mark.parametrize("other", [torch.ones(4), torch.ones(3, dtype=torch.float64)])
def test_memory_of_another_shape_or_type_is_not_reused(other: torch.Tensor):
    copy = CheckpointContents(model={"a": other}).copy(
        reuse=CheckpointContents(model={"a": torch.zeros(3)})
    )

    assert copy.model["a"].equal(other) and copy.model["a"].dtype == other.dtype


@pytest.mark.parametrize("update", [None, True, -1, "3", 2.0])
def test_a_state_without_its_update_is_refused(update: object):
    with pytest.raises(CheckpointError, match="invalid update"):
        _ = CheckpointContents(model={}, state={"update": update}).update


def test_equal_names_and_shapes_match():
    check_match(small(1).model, small(2).model)


def test_a_mismatch_lists_missing_unexpected_and_wrong_shaped_names_with_counts():
    expected = {"fc.weight": torch.zeros(10, 64), "bias": torch.zeros(3)}
    found = {"fc.weight": torch.zeros(100, 64)} | {f"x{n}": torch.zeros(1) for n in range(9)}
    with pytest.raises(CheckpointError) as caught:
        check_match(found, expected)

    assert str(caught.value).startswith(
        "the checkpoint does not match this model: 1 missing (bias); "
        "9 unexpected (x0, x1, x2, x3 and 5 more); 1 with the wrong shape or dtype "
        "(fc.weight 100×64 float32, expected 10×64 float32)"
    )
    assert caught.value.code == 4


def test_another_precision_does_not_match():
    with pytest.raises(CheckpointError, match="a scalar float16, expected scalar float32"):
        check_match({"a": torch.tensor(1.0).half()}, {"a": torch.tensor(1.0)}, what="optimizer")


def test_the_digest_is_over_sorted_names_types_shapes_and_bytes():
    tensors = {"b": torch.tensor([1, 2], dtype=torch.int16), "a": torch.tensor(1.0)}
    hashed_bytes = b'["a", "float32", []]\n\0\0\x80?["b", "int16", [2]]\n\1\0\2\0'

    assert weights_sha256(tensors) == hashlib.sha256(hashed_bytes).hexdigest()


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


def test_dtypes_that_numpy_lacks_have_a_digest():
    half = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(2, dtype=torch.bool)}

    assert len(weights_sha256(half)) == 64
