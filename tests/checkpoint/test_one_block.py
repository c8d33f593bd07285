"""Room for a copy in one block of memory."""

from itertools import pairwise

import torch
from checkpoint_samples import fingerprint, small

from convoy.checkpoint.contents import Contents
from convoy.checkpoint.one_block import room_for


def all_kinds() -> Contents:
    """Types of all widths, a scalar, an empty tensor, strides of their own; in an unkind order."""
    square = torch.arange(12.0).reshape(3, 4)
    return Contents(
        model={
            "flag": torch.tensor([True, False, True]),
            "wide": square.double(),
            "count": torch.tensor(7),
            "empty": torch.zeros(0, 4),
            "turned": square.t(),
            "half": square.half(),
        },
        optimizer={"wide/velocity": square / 3},
        state={"update": 1},
    )


def test_a_copy_into_it_holds_the_same_bits():
    for contents in (small(), all_kinds(), Contents({}, state={"update": 0})):
        copy = contents.copy(reuse=room_for(contents))

        assert fingerprint(copy) == fingerprint(contents)


def test_all_tensors_of_a_copy_lie_in_it_and_apart():
    contents = all_kinds()
    room = room_for(contents)
    copy = contents.copy(reuse=room)
    copied = [one for part in (copy.model, copy.optimizer) for one in part.values()]
    copied = [one for one in copied if one.numel()]
    blocks = {one.untyped_storage().data_ptr() for one in copied}
    spans = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in copied)

    assert len(blocks) == 1
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
