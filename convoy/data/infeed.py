"""Jobs are done ahead of their use, and their results come out in the order of the jobs.

    jobs:  0 1 2 3 4 5 …      with depth 3, jobs 2, 3 and 4 are in hand while the loop uses
               └──┬──┘        the result of job 1; the workers take whichever waits
               in hand

A job is a pure function, so the number of workers cannot change what comes out.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

Job = Callable[[], T]


def prefetch(jobs: Iterable[Job[T]], workers: int, depth: int) -> Generator[T]:
    """The results of the jobs in order; with no workers each is done when it is asked for."""
    if workers == 0:
        return (job() for job in jobs)
    return _prefetched(iter(jobs), workers, depth)


def _prefetched(jobs: Iterator[Job[T]], workers: int, depth: int) -> Generator[T]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="infeed")
    in_hand: deque[Future[T]] = deque()
    try:
        # At least one job per worker, or some would never have work.
        in_hand.extend(pool.submit(job) for job in islice(jobs, max(depth, workers)))
        while in_hand:
            result = in_hand.popleft().result()
            in_hand.extend(pool.submit(job) for job in islice(jobs, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
