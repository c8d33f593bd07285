"""The cores of this machine, shared out between its workers so that none pushes another away."""

import os
import sys
from collections.abc import Sequence
from itertools import pairwise


def available_cores() -> tuple[int, ...]:
    """The cores this process may use, in order."""
    if sys.platform == "linux":
        cores = os.sched_getaffinity(0)
    else:
        cores = set(range(os.cpu_count() or 1))
    return tuple(sorted(cores))


def threads_each(asked: int, processes: int) -> int:
    """The asked number; 0 shares the cores we may use among the processes of this host."""
    return asked or max(1, len(available_cores()) // processes)


def share_cores(cores: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """Neighboring cores for each worker, as many for all as can be; too few are taken in turn.

    5 cores, 2 workers: 0 1 2 | 3 4. 2 cores, 3 workers: 0 | 1 | 0.
    """
    assert cores and workers >= 1
    if workers >= len(cores):
        return tuple((cores[worker % len(cores)],) for worker in range(workers))
    each, extra = divmod(len(cores), workers)
    begins = [worker * each + min(worker, extra) for worker in range(workers + 1)]
    return tuple(tuple(cores[a:b]) for a, b in pairwise(begins))


def bind(cores: Sequence[int]) -> bool:
    """Keep this process, and the threads it starts from now on, on these cores; false if refused.

    A container may refuse; a run that is not bound is slower, not wrong.
    """
    if sys.platform != "linux":
        return False
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        return False
    return True
