"""Infeed: positions after a restore, a pause and a skip."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from convoy.data.infeed import Infeed, InfeedShare

DATASETS = {
    "indexed": torch.arange(40),
    "iterated": [torch.tensor(index) for index in range(40)],
}


def take(infeed: Infeed, count: int) -> list[int]:
    return [int(infeed.next()) for _ in range(count)]  # type: ignore[arg-type]  # scalars


@pytest.fixture(params=DATASETS)
def make_infeed(request: pytest.FixtureRequest) -> Iterator[Callable[..., Infeed]]:
    """Creates infeeds of a dataset, and closes them at the end."""
    infeeds = list[Infeed]()

    def make(**options: Any) -> Infeed:
        infeeds.append(Infeed(DATASETS[request.param], **options))
        return infeeds[-1]

    yield make
    for infeed in infeeds:
        infeed.close()


def test_a_position_survives_two_restores(make_infeed: Callable[..., Infeed]) -> None:
    infeed = make_infeed(prefetch_depth=2)
    for start in (0, 3, 6):
        assert take(infeed, 3) == [start, start + 1, start + 2]
        state = infeed.state_dict()
        assert state == {"position": start + 3}
        infeed = make_infeed(prefetch_depth=2)
        infeed.load_state_dict(state)


def test_a_restored_position_replaces_prepared_elements(make_infeed: Callable[..., Infeed]) -> None:
    infeed = make_infeed(prefetch_depth=4)
    take(infeed, 5)
    infeed.peek()
    infeed.load_state_dict({"position": 2})

    assert take(infeed, 3) == [2, 3, 4]


def test_a_closed_infeed_continues_with_the_next_element(
    make_infeed: Callable[..., Infeed],
) -> None:
    infeed = make_infeed(prefetch_depth=2, replica=1, replicas=2)
    assert take(infeed, 2) == [1, 3]
    infeed.peek()
    infeed.close()

    assert take(infeed, 2) == [5, 7]


def test_the_number_of_replicas_may_change_at_a_restore(make_infeed: Callable[..., Infeed]) -> None:
    before = [make_infeed(replica=replica, replicas=2) for replica in range(2)]
    assert [take(infeed, 3) for infeed in before] == [[0, 2, 4], [1, 3, 5]]
    (state,) = {tuple(infeed.state_dict().items()) for infeed in before}
    after = [make_infeed(replica=replica, replicas=3) for replica in range(3)]
    for infeed in after:
        infeed.load_state_dict(dict(state))

    assert [take(infeed, 2) for infeed in after] == [[6, 9], [7, 10], [8, 11]]


def test_a_replica_of_a_pipeline_receives_blocks_and_skips_those_of_other_processes(
    make_infeed: Callable[..., Infeed],
) -> None:
    infeed = make_infeed()
    infeed.assign(InfeedShare(replica=1, replicas=2, block=3))
    assert take(infeed, 4) == [3, 4, 5, 9]
    infeed.skip()

    assert take(infeed, 2) == [11, 15]
    with pytest.raises(ValueError, match="replicas"):
        infeed.assign(InfeedShare(replica=0, replicas=2, block=3))


def test_elements_arrive_on_the_device() -> None:
    infeed = Infeed((torch.zeros(2, 3), torch.zeros(2)), device="meta")

    assert all(tensor.is_meta for tensor in infeed.next())
    infeed.close()


def reused_buffer() -> Iterator[dict[str, Any]]:
    array, tensor = np.zeros(2), torch.zeros(2)
    for value in range(6):
        array[:] = value
        yield {"array": array, "nested": (tensor.fill_(value),)}


def test_an_iterator_may_use_the_memory_of_an_element_again() -> None:
    infeed = Infeed(reused_buffer(), prefetch_depth=4)
    elements: list[Any] = [infeed.next() for _ in range(6)]
    infeed.close()

    assert [element["array"].tolist() for element in elements] == [[i, i] for i in range(6)]
    assert [element["nested"][0].tolist() for element in elements] == [[i, i] for i in range(6)]


@pytest.mark.parametrize("restart", [Infeed.close, lambda infeed: infeed.load_state_dict(POSITION)])
def test_an_iterator_is_not_continued_at_another_position(
    restart: Callable[[Infeed], None],
) -> None:
    infeed = Infeed(iter(range(10)), prefetch_depth=3)
    assert take(infeed, 3) == [0, 1, 2]
    restart(infeed)

    with pytest.raises(ValueError, match="an iterator cannot be read again"):
        infeed.next()


POSITION = {"position": 3}


class Stream(torch.utils.data.IterableDataset[int]):
    """Has a length, as the loaders of torch like it, but no items."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_an_iterable_dataset_with_a_length_is_iterated() -> None:
    infeed = Infeed(Stream())

    assert take(infeed, 3) == [0, 1, 2]
    infeed.close()


def test_an_array_with_negative_strides_is_copied() -> None:
    infeed = Infeed(np.arange(6.0).reshape(2, 3)[:, ::-1])

    assert [element.tolist() for element in (infeed.next(), infeed.next())] == [  # type: ignore[union-attr]
        [2, 1, 0],
        [5, 4, 3],
    ]
    infeed.close()


@pytest.mark.parametrize(
    "state", [{}, {"position": -1}, {"position": 1.5}, {"position": "2"}, None]
)
def test_a_state_without_a_position_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="position"):
        Infeed([1]).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prefetch_depth": "2"}, TypeError),
        ({"prefetch_depth": 1.5}, TypeError),
        ({"prefetch_depth": True}, TypeError),
        ({"device": "toaster"}, ValueError),
        ({"device": 7}, ValueError),
        ({"replica": "0", "replicas": 1}, TypeError),
        ({"replica": 0, "replicas": 0}, ValueError),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="|".join(options)):
        Infeed([1], **options)


@pytest.mark.parametrize("dataset", [(), {}, (np.zeros(2), 5), torch.tensor(1.0), 5, None])
def test_what_is_no_dataset_is_a_type_error(dataset: Any) -> None:
    with pytest.raises(TypeError, match="infeed"):
        Infeed(dataset).next()
