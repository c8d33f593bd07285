"""How many workers this machine can hold; asked before anything starts."""

from pathlib import Path

from convoy.errors import ConfigError

MOST_WORKERS = 64
# What a worker needs besides its stage. Measured on its own pages: 8 MB after joining a group of
# four, 16-20 MB after three small backward passes; the rest is a margin for data and buffers.
BYTES_OF_A_WORKER = 100_000_000

_MEMORY = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")


def refuse_too_many(workers: int, bytes_each: int = 0, force: bool = False) -> None:
    """A ConfigError with the numbers; `bytes_each` is what the plan says of the largest stage."""
    if force:
        return
    if workers > MOST_WORKERS:
        raise ConfigError(
            f"{workers} workers are more than the {MOST_WORKERS} one machine may run; "
            f"lower --replicas or --shards"
        )
    needed, free = workers * (BYTES_OF_A_WORKER + bytes_each), free_bytes()
    if free is not None and needed > free:
        raise ConfigError(
            f"{workers} workers need about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB "
            f"are free; lower --replicas, --shards or --micro-batch-size"
        )


def free_bytes() -> int | None:
    """What the machine, or the container around us, has left; None where nobody tells."""
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
