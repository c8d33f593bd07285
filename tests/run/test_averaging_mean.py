"""The arithmetic of checkpoint averages."""

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from convoy.checkpoint.format import CheckpointContents
from convoy.errors import CheckpointError
from convoy.run.averaging import average


def checkpoint_with(
    value: float, count: int = 0, dtype: torch.dtype = torch.float32
) -> CheckpointContents:
    return CheckpointContents(
        model={
            "w": torch.full((2,), value, dtype=dtype),
            "bn.running_mean": torch.full((2,), value),
            "bn.num_batches_tracked": torch.tensor(count),
        }
    )


def test_the_mean_weights_every_checkpoint_equally():
    averaged = average(checkpoint_with(value, count) for count, value in enumerate((1.0, 2.0, 6.0)))

    assert averaged["w"].tolist() == [3.0, 3.0]
    assert averaged["bn.running_mean"].tolist() == [3.0, 3.0]
    assert averaged["w"].dtype == torch.float32


def test_the_exponential_average_has_the_configured_decay():
    averaged = average((checkpoint_with(value) for value in (8.0, 4.0, 2.0)), decay=0.75)

    assert averaged["w"].tolist() == [(8 * 0.75 + 4 * 0.25) * 0.75 + 2 * 0.25] * 2


def random_checkpoints(dtype: torch.dtype, count: int = 6) -> list[CheckpointContents]:
    rng = np.random.default_rng(5)
    weights = [rng.normal(scale=3, size=(7, 5)) for _ in range(count)]
    return [CheckpointContents(model={"w": torch.from_numpy(array).to(dtype)}) for array in weights]


def as_numpy(checkpoints: list[CheckpointContents]) -> list[np.ndarray]:
    return [contents.model["w"].double().numpy() for contents in checkpoints]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_mean_is_computed_in_float64_and_rounded_once(dtype: torch.dtype):
    checkpoints = random_checkpoints(dtype)
    expected = np.mean(as_numpy(checkpoints), axis=0)
    found = average(checkpoints)["w"]

    assert torch.allclose(found.double(), torch.from_numpy(expected).to(dtype).double(), rtol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1, 0.9, 0.99])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_exponential_average_is_the_sum_of_its_powers(decay: float, dtype: torch.dtype):
    """The first checkpoint has the weight d^(n−1), checkpoint i has (1 − d) · d^(n−1−i)."""
    checkpoints = random_checkpoints(dtype)
    last = len(checkpoints) - 1
    shares = [decay**last, *((1 - decay) * decay ** (last - i) for i in range(1, last + 1))]
    pairs = zip(shares, as_numpy(checkpoints), strict=True)
    expected = np.sum([share * array for share, array in pairs], axis=0)
    found = average(checkpoints, decay)["w"]

    assert sum(shares) == pytest.approx(1)
    assert torch.allclose(found.double(), torch.from_numpy(expected).to(dtype).double(), rtol=1e-13)


def test_integers_are_taken_from_the_newest_checkpoint():
    checkpoints = [checkpoint_with(1.0, count) for count in (5, 7, 9)]
    averages = [average(checkpoints), average(checkpoints, 0.5)]

    assert [average["bn.num_batches_tracked"].item() for average in averages] == [9, 9]


def test_named_tensors_are_taken_from_the_newest_checkpoint():
    averaged = average(
        [checkpoint_with(1.0), checkpoint_with(3.0)],
        keep_suffixes=(".running_mean", ".running_var"),
    )

    assert averaged["bn.running_mean"].tolist() == [3.0, 3.0]
    assert averaged["w"].tolist() == [2.0, 2.0]


def test_sums_are_computed_in_float64():
    values = [2.0**24, 1.0, 1.0, -(2.0**24)]  # 2^24 + 1 is not representable in float32

    assert average(map(checkpoint_with, values))["w"][0].item() == 0.5


def test_dtypes_are_preserved():
    halves = [checkpoint_with(value, dtype=torch.bfloat16) for value in (1.0, 2.0)]

    assert average(halves)["w"].dtype == torch.bfloat16


def test_the_average_of_equal_models_is_bit_identical_to_them():
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    same = [CheckpointContents(model={"w": weight}) for _ in range(7)]

    assert average(same)["w"].equal(weight)


def test_averaging_changes_none_of_its_inputs_and_shares_no_memory():
    checkpoints = [checkpoint_with(1.0, 1), checkpoint_with(3.0, 2)]
    averaged = average(checkpoints)
    for tensor in averaged.values():
        tensor.zero_()

    assert [contents.model["w"][0].item() for contents in checkpoints] == [1.0, 3.0]
    assert checkpoints[1].model["bn.num_batches_tracked"].item() == 2


def test_one_checkpoint_is_in_memory_at_a_time():
    alive, earlier = [], []

    def loaded() -> Iterator[CheckpointContents]:
        for value in range(5):
            alive.append(sum(reference() is not None for reference in earlier))
            tensor = torch.full((2,), float(value))
            earlier.append(weakref.ref(tensor))
            contents = CheckpointContents(model={"w": tensor})
            del tensor
            yield contents
            del contents

    averaged = average(loaded())

    assert averaged["w"].tolist() == [2.0, 2.0]
    assert alive == [0] * 5


def test_live_parameters_leave_no_graph_behind():
    live = [CheckpointContents(model={"w": torch.nn.Parameter(torch.ones(2))}) for _ in range(2)]

    assert not average(live)["w"].requires_grad


def test_checkpoints_of_different_models_are_refused():
    with pytest.raises(CheckpointError, match="1 with the wrong shape or dtype"):
        average(
            [
                CheckpointContents(model={"w": torch.ones(2)}),
                CheckpointContents(model={"w": torch.ones(3)}),
            ]
        )


def test_nothing_to_average_is_refused():
    with pytest.raises(CheckpointError, match="no checkpoint to average"):
        average([])
