"""The machine: cores, threads, free memory, signals, and settings of malloc and OpenMP."""

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType

from convoy.errors import ConfigError

SPIN_COUNT = "10000"  # for GNU OpenMP


def limit_openmp_spinning() -> None:
    """Make idle OpenMP threads spin briefly, then sleep, unless the user has set this."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 32 * 2**20  # glibc's upper limit: larger blocks always use mmap
_NO_TRIM = 2**31 - 1


def keep_freed_memory() -> None:
    """Make malloc reuse freed blocks up to 32 MiB, unless the user has set this."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _NO_TRIM)


def available_cores() -> tuple[int, ...]:
    """Return the cores this process may use, sorted."""
    if sys.platform == "linux":
        cores = os.sched_getaffinity(0)
    else:
        cores = set(range(os.cpu_count() or 1))
    return tuple(sorted(cores))


_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> float | None:
    """Return the CPU time per second that the container allows; None if it is not limited."""
    paths = dict(line.split(":", 2)[1:] for line in _read(own).splitlines() if line.count(":") > 1)
    quotas = []
    for controllers, path in paths.items():
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        mount = root / controllers if (root / controllers).is_dir() else root / "cpu"
        folder = (mount if controllers else root) / path.lstrip("/")
        quotas += [quota for parent in (folder, *folder.parents) if (quota := _quota_in(parent))]
    return min(quotas, default=None)


def _quota_in(folder: Path) -> float | None:
    """The quota that a folder of cgroup v2, or of the v1 controller `cpu`, sets."""
    words = _read(folder / "cpu.max").split() or [
        _read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    if len(words) < 2 or not all(word.isdecimal() and int(word) for word in words[:2]):
        return None  # `max` or -1: no limit
    return int(words[0]) / int(words[1])


def usable_core_count() -> int:
    """Return the number of cores that this process may keep busy: affinity and CPU quota."""
    cores, quota = len(available_cores()), cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def default_threads(processes: int) -> tuple[int, str]:
    """Return the threads of each of the host's processes, and where the number comes from.

    OMP_NUM_THREADS is a number per process; otherwise the processes share the usable cores.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and first.isascii() and int(first) > 0:
        return int(first), "OMP_NUM_THREADS"
    cores = usable_core_count()
    source = "cores of this machine" if cores == len(available_cores()) else "CPU quota"
    return max(1, cores // processes), source


def threads_per_process(requested: int, processes: int) -> int:
    """Return the requested number of threads, or the default if it is 0."""
    return requested or default_threads(processes)[0]


def partition_cores(cores: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """Assign neighboring cores to each worker, evenly; with too few cores workers share them.

    5 cores, 2 workers: 0 1 2 | 3 4. 2 cores, 3 workers: 0 | 1 | 0.
    """
    assert cores and workers >= 1
    if workers >= len(cores):
        return tuple((cores[worker % len(cores)],) for worker in range(workers))
    per_worker, extra = divmod(len(cores), workers)
    bounds = [worker * per_worker + min(worker, extra) for worker in range(workers + 1)]
    return tuple(tuple(cores[start:stop]) for start, stop in pairwise(bounds))


def bind_to_cores(cores: Sequence[int]) -> None:
    """Pin this process, and the threads it starts from now on, to these cores.

    A container may refuse; without pinning a run is slower but correct.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


@contextmanager
def handle_signals(
    signals: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Handle these signals in this block; only the main thread can.

    A signal that was ignored at startup stays ignored: that is how `nohup` works.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handled = [sig for sig in signals if is_main and signal.getsignal(sig) != signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)


MAX_WORKER_PROCESSES = 64
# Memory of a worker besides its stage. Measured private pages: 8 MB after joining a group of four,
# 16-20 MB after three small backward passes; the rest is a margin for data and buffers.
BYTES_PER_WORKER = 100_000_000

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USAGE = Path("/sys/fs/cgroup/memory.current")


def check_capacity(workers: int, bytes_per_worker: int = 0) -> None:
    """Raise ConfigError if the workers do not fit; `bytes_per_worker` is the plan of a stage."""
    if workers > MAX_WORKER_PROCESSES:
        raise ConfigError(
            f"{workers} workers exceed the limit of {MAX_WORKER_PROCESSES} per machine; "
            f"lower --replicas or --shards"
        )
    needed, free = workers * (BYTES_PER_WORKER + bytes_per_worker), free_memory_bytes()
    if free is not None and needed > free:
        raise ConfigError(
            f"{workers} workers need about {needed / 1e9:.1f} GB of memory, but only "
            f"{free / 1e9:.1f} GB are free; lower --replicas, --shards or --micro-batch-size"
        )


def free_memory_bytes() -> int | None:
    """Return the free memory of the machine or container; None if unknown."""
    known = []
    if available := re.search(r"^MemAvailable: *(\d+) kB", _read(_MEMINFO), re.MULTILINE):
        known.append(int(available[1]) * 1024)
    limit, used = _read(_CGROUP_LIMIT).strip(), _read(_CGROUP_USAGE).strip()
    if limit.isdecimal() and used.isdecimal():
        known.append(max(0, int(limit) - int(used)))
    return min(known, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
