"""This machine: cores, threads, free memory, and how the C library and OpenMP use them."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType

from convoy.errors import ConfigError

SPIN_COUNT = "10000"  # of GNU OpenMP


def limit_openmp_spinning() -> None:
    """Idle OpenMP threads spin briefly, then sleep; the user's own setting wins."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_LARGEST_KEPT = 32 * 2**20  # glibc's own upper limit: larger blocks always come from the system
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """malloc reuses freed blocks up to 32 MiB; the user's own setting wins."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)


def available_cores() -> tuple[int, ...]:
    """The cores this process may use, in order."""
    if sys.platform == "linux":
        cores = os.sched_getaffinity(0)
    else:
        cores = set(range(os.cpu_count() or 1))
    return tuple(sorted(cores))


def threads_each(requested: int, processes: int) -> int:
    """The requested number; 0 divides the available cores among the processes of this host."""
    return requested or max(1, len(available_cores()) // processes)


def share_cores(cores: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """Neighboring cores for each worker, the same number if possible; too few are used in turn.

    5 cores, 2 workers: 0 1 2 | 3 4. 2 cores, 3 workers: 0 | 1 | 0.
    """
    assert cores and workers >= 1
    if workers >= len(cores):
        return tuple((cores[worker % len(cores)],) for worker in range(workers))
    each, extra = divmod(len(cores), workers)
    begins = [worker * each + min(worker, extra) for worker in range(workers + 1)]
    return tuple(tuple(cores[a:b]) for a, b in pairwise(begins))


def bind_to_cores(cores: Sequence[int]) -> bool:
    """Keep this process, and the threads it starts from now on, on these cores; false if refused.

    A container may refuse; a run that is not bound is slower but correct.
    """
    if sys.platform != "linux":
        return False
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        return False
    return True


@contextmanager
def handle_signals(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """In this block; in a thread other than the main one, which gets no signals, nothing changes.

    A signal that was ignored when we were started stays ignored: that is how `nohup` works.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handled = [one for one in numbers if is_main and signal.getsignal(one) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


MOST_WORKERS = 64
# What a worker needs besides its stage. Measured in its own pages: 8 MB after joining a group of
# four, 16-20 MB after three small backward passes; the rest is a margin for data and buffers.
BYTES_PER_WORKER = 100_000_000

_MEMORY = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")


def check_capacity(workers: int, bytes_each: int = 0) -> None:
    """ConfigError if the workers do not fit; `bytes_each` is the planned memory of a stage."""
    if workers > MOST_WORKERS:
        raise ConfigError(
            f"{workers} workers are more than the {MOST_WORKERS} one machine may run; "
            f"lower --replicas or --shards"
        )
    needed, free = workers * (BYTES_PER_WORKER + bytes_each), free_memory_bytes()
    if free is not None and needed > free:
        raise ConfigError(
            f"{workers} workers need about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB "
            f"are free; lower --replicas, --shards or --micro-batch-size"
        )


def free_memory_bytes() -> int | None:
    """What the machine, or the container around us, has left; None if unknown."""
    known = [amount for amount in (_free_on_machine(), _free_in_container()) if amount is not None]
    return min(known, default=None)


def _free_on_machine() -> int | None:
    for line in _read(_MEMORY).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return None


def _free_in_container() -> int | None:
    limit, used = _read(_LIMIT).strip(), _read(_USED).strip()
    return max(0, int(limit) - int(used)) if limit.isdecimal() and used.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
