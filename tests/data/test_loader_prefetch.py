"""Work done ahead: in order, not too far ahead, once each, and nothing left behind."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import numpy as np
import pytest

from convoy.data import loader as infeed
from convoy.data.loader import prefetch

WORKERS = [0, 1, 2, 4, 8]
PATIENCE = 300  # seconds


def infeed_threads() -> list[str]:
    return [item.name for item in threading.enumerate() if item.name.startswith("infeed")]


def wait_until(true: Callable[[], bool]) -> None:
    """For what other threads do in their own time; a test that waits in vain has failed."""
    end = monotonic() + PATIENCE
    while not true():
        assert monotonic() < end, "nothing happened"
        sleep(0.001)


class Work:
    """Counts its jobs as they are taken, begun and ended."""

    def __init__(self, jobs: int, seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        self.count = jobs
        self.seconds = seconds
        self.taken = 0
        self.begun: Counter[int] = Counter()
        self.lock = threading.Lock()

    def jobs(self) -> Iterator[Callable[[], int]]:
        for number in range(self.count):
            self.taken += 1
            yield lambda number=number: self.do(number)

    def do(self, number: int) -> int:
        with self.lock:
            self.begun[number] += 1
        sleep(self.seconds(number))
        return number


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("depth", [1, 3, 20])
def test_results_are_in_job_order_and_each_job_runs_once(workers: int, depth: int) -> None:
    durations = np.random.default_rng(workers).exponential(0.001, 60)
    work = Work(60, lambda number: durations[number])
    results = list(prefetch(work.jobs(), workers, depth))

    assert results == list(range(60))
    assert work.begun == Counter(range(60))
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", WORKERS)
def test_no_jobs_give_no_results(workers: int) -> None:
    assert list(prefetch(iter(()), workers, 3)) == []
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("depth", [1, 3, 10])
def test_workers_prefetch_up_to_the_depth(workers: int, depth: int) -> None:
    work, ahead = Work(100), max(depth, workers)
    feed = prefetch(work.jobs(), workers, depth)
    for used in range(1, 6):
        next(feed)
        wait_until(lambda used=used: len(work.begun) == used + ahead)
        sleep(0.002)  # time for a job too many

        assert len(work.begun) == work.taken == used + ahead
    feed.close()


def test_without_workers_nothing_is_prefetched() -> None:
    work = Work(10)
    feed = prefetch(work.jobs(), 0, 5)
    next(feed)
    next(feed)

    assert len(work.begun) == work.taken == 2
    assert infeed_threads() == []


def test_no_job_starts_before_the_first_result_is_requested() -> None:
    work = Work(10)
    feed = prefetch(work.jobs(), 4, 5)
    feed.close()

    assert work.taken == 0
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_all_workers_have_work_at_the_same_time(workers: int) -> None:
    meeting = threading.Barrier(workers, timeout=PATIENCE)
    feed = prefetch((meeting.wait for _ in range(workers)), workers, depth=1)

    assert sorted(feed) == list(range(workers))


def failing(number: int) -> int:
    """Later jobs fail at once, the first to fail in order takes its time."""
    if number == 5:
        sleep(0.02)
    if number >= 5:
        raise ValueError(f"job {number}")
    return number


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_is_raised_at_its_position_and_ends_the_feed(workers: int) -> None:
    feed = prefetch((lambda number=number: failing(number) for number in range(50)), workers, 4)
    results = []
    with pytest.raises(ValueError, match="job 5"):
        for item in feed:
            results.append(item)

    assert results == [0, 1, 2, 3, 4]
    assert list(feed) == []
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", WORKERS)
def test_a_failed_feed_starts_no_further_job(workers: int) -> None:
    work = Work(100)
    jobs = [lambda number=number: failing(work.do(number)) for number in range(100)]
    with pytest.raises(ValueError, match="job 5"):
        list(prefetch(jobs, workers, depth=3))

    assert len(work.begun) <= 6 + max(3, workers)


@pytest.mark.parametrize("workers", WORKERS)
def test_closing_early_stops_the_threads(workers: int) -> None:
    work = Work(1000, lambda _: 0.001)
    feed = prefetch(work.jobs(), workers, depth=5)
    for _ in range(3):
        next(feed)
    feed.close()
    begun = len(work.begun)
    sleep(0.005)  # time for a thread that was left

    assert infeed_threads() == []
    assert len(work.begun) == begun
    assert list(feed) == []


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_closing_early_cancels_waiting_jobs(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    class Gated(ThreadPoolExecutor):
        """Lets the jobs under way end only when the closing has begun."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            gate.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(infeed, "ThreadPoolExecutor", Gated)
    work = Work(100)
    jobs = [
        lambda n=n: work.do(n) and gate.wait(PATIENCE) for n in range(100)
    ]  # all but job 0 wait
    feed = prefetch(jobs, workers, depth=50)
    next(feed)
    wait_until(lambda: len(work.begun) == 1 + workers)
    feed.close()

    assert len(work.begun) == 1 + workers


def test_closing_waits_for_running_jobs() -> None:
    begun, ended = threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        sleep(0.05)
        ended.set()

    feed = prefetch([lambda: None, long, lambda: None], 1, 3)
    next(feed)
    begun.wait(PATIENCE)
    feed.close()

    assert ended.is_set()
    assert infeed_threads() == []


def test_an_unreferenced_feed_leaves_no_threads() -> None:
    feed = prefetch(Work(100).jobs(), 3, 3)
    next(feed)
    del feed

    assert infeed_threads() == []
