"""Prefetching: results in order, limited depth, each job once, and no threads left behind."""

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import numpy as np
import pytest

from convoy.data import loader
from convoy.data.loader import prefetch

WORKERS = [0, 1, 2, 4, 8]
TIMEOUT = 300  # seconds


@pytest.fixture(autouse=True)
def _without_earlier_threads() -> None:
    """Other tests in this process may have left an infeed for the garbage collector."""
    gc.collect()


def infeed_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("infeed")]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for other threads until the condition holds; fail after a timeout."""
    end = monotonic() + TIMEOUT
    while not condition():
        assert monotonic() < end, "timed out"
        sleep(0.001)


class CountedJobs:
    """Jobs that count how many were taken and started."""

    def __init__(self, jobs: int, seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        self.count = jobs
        self.seconds = seconds
        self.taken = 0
        self.started: Counter[int] = Counter()
        self.lock = threading.Lock()

    def jobs(self) -> Iterator[Callable[[], int]]:
        for number in range(self.count):
            self.taken += 1
            yield lambda number=number: self.do(number)

    def do(self, number: int) -> int:
        with self.lock:
            self.started[number] += 1
        sleep(self.seconds(number))
        return number


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("depth", [1, 3, 20])
def test_results_are_in_job_order_and_each_job_runs_once(workers: int, depth: int) -> None:
    durations = np.random.default_rng(workers).exponential(0.001, 60)
    work = CountedJobs(60, lambda number: durations[number])
    results = list(prefetch(work.jobs(), workers, depth))

    assert results == list(range(60))
    assert work.started == Counter(range(60))
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", WORKERS)
def test_no_jobs_give_no_results(workers: int) -> None:
    assert list(prefetch(iter(()), workers, 3)) == []
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("depth", [1, 3, 10])
def test_workers_prefetch_up_to_the_depth(workers: int, depth: int) -> None:
    work, ahead = CountedJobs(100), max(depth, workers)
    feed = prefetch(work.jobs(), workers, depth)
    for used in range(1, 6):
        next(feed)
        wait_until(lambda used=used: len(work.started) == used + ahead)
        sleep(0.002)  # time for an extra job to start

        assert len(work.started) == work.taken == used + ahead
    feed.close()


def test_without_workers_nothing_is_prefetched() -> None:
    work = CountedJobs(10)
    feed = prefetch(work.jobs(), 0, 5)
    next(feed)
    next(feed)

    assert len(work.started) == work.taken == 2
    assert infeed_threads() == []


def test_no_job_starts_before_the_first_result_is_requested() -> None:
    work = CountedJobs(10)
    feed = prefetch(work.jobs(), 4, 5)
    feed.close()

    assert work.taken == 0
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_all_workers_run_jobs_at_the_same_time(workers: int) -> None:
    barrier = threading.Barrier(workers, timeout=TIMEOUT)
    feed = prefetch((barrier.wait for _ in range(workers)), workers, depth=1)

    assert sorted(feed) == list(range(workers))


def failing(number: int) -> int:
    """Job 5, the first that fails, takes longer than the later jobs, which fail immediately."""
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
        for result in feed:
            results.append(result)

    assert results == [0, 1, 2, 3, 4]
    assert list(feed) == []
    assert infeed_threads() == []


@pytest.mark.parametrize("workers", WORKERS)
def test_a_failed_feed_starts_no_further_job(workers: int) -> None:
    work = CountedJobs(100)
    jobs = [lambda number=number: failing(work.do(number)) for number in range(100)]
    with pytest.raises(ValueError, match="job 5"):
        list(prefetch(jobs, workers, depth=3))

    assert len(work.started) <= 6 + max(3, workers)


@pytest.mark.parametrize("workers", WORKERS)
def test_closing_early_stops_the_threads(workers: int) -> None:
    work = CountedJobs(1000, lambda _: 0.001)
    feed = prefetch(work.jobs(), workers, depth=5)
    for _ in range(3):
        next(feed)
    feed.close()
    started = len(work.started)
    sleep(0.005)  # time for a remaining thread to start a job

    assert infeed_threads() == []
    assert len(work.started) == started
    assert list(feed) == []


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_closing_early_cancels_waiting_jobs(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    class Gated(ThreadPoolExecutor):
        """Lets running jobs finish only after the shutdown has started."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            gate.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(loader, "ThreadPoolExecutor", Gated)
    work = CountedJobs(100)
    # All jobs except job 0 wait for the gate.
    jobs = [lambda n=n: work.do(n) and gate.wait(TIMEOUT) for n in range(100)]
    feed = prefetch(jobs, workers, depth=50)
    next(feed)
    wait_until(lambda: len(work.started) == 1 + workers)
    feed.close()

    assert len(work.started) == 1 + workers


def test_closing_waits_for_running_jobs() -> None:
    started, finished = threading.Event(), threading.Event()

    def slow_job() -> None:
        started.set()
        sleep(0.05)
        finished.set()

    feed = prefetch([lambda: None, slow_job, lambda: None], 1, 3)
    next(feed)
    started.wait(TIMEOUT)
    feed.close()

    assert finished.is_set()
    assert infeed_threads() == []


def test_an_unreferenced_feed_leaves_no_threads() -> None:
    feed = prefetch(CountedJobs(100).jobs(), 3, 3)
    next(feed)
    del feed

    assert infeed_threads() == []


def test_a_worker_may_close_the_jobs() -> None:
    """As the garbage collector does, which may run in any thread."""
    may_close, outcomes = threading.Event(), list[BaseException | None]()

    def close() -> int:
        may_close.wait(TIMEOUT)
        try:
            results.close()
        except RuntimeError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
        return 1

    results = prefetch(iter([lambda: 0, close]), workers=1, depth=2)
    assert next(results) == 0
    may_close.set()
    wait_until(lambda: bool(outcomes))

    assert outcomes == [None]
    wait_until(lambda: not infeed_threads())
