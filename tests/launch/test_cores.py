"""Cores are shared out in blocks; a worker stays on its own."""

import os
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.launch.cores import available_cores, bind, share_cores


def test_each_worker_gets_neighboring_cores() -> None:
    assert share_cores([0, 1, 2, 3], 2) == ((0, 1), (2, 3))
    assert share_cores([0, 1, 2, 3, 4], 2) == ((0, 1, 2), (3, 4))
    assert share_cores([3, 5, 7], 1) == ((3, 5, 7),)


def test_more_workers_than_cores_take_them_in_turn() -> None:
    assert share_cores([4, 9], 5) == ((4,), (9,), (4,), (9,), (4,))


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 70))
def test_every_core_is_used_and_nobody_has_much_more(cores: int, workers: int) -> None:
    shares = share_cores(range(cores), workers)
    sizes = {len(share) for share in shares}
    uses = [sum(core in share for share in shares) for core in range(cores)]

    assert len(shares) == workers
    assert max(sizes) - min(sizes) <= 1
    assert max(uses) - min(uses) <= 1
    assert min(uses) >= 1
    if workers <= cores:
        assert list(chain(*shares)) == list(range(cores))


def test_available_cores_are_those_of_this_process() -> None:
    assert set(available_cores()) == os.sched_getaffinity(0)


def test_cores_that_do_not_exist_are_refused_without_an_error() -> None:
    before = os.sched_getaffinity(0)
    bound = bind([100_000])

    assert not bound
    assert os.sched_getaffinity(0) == before
