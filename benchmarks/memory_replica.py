"""A worker process of `memory.py`: the resident memory of a replica after an update and a save.

Pages are counted in /proc/self/pagemap, so that single tensors can be measured.
"""

import ctypes
import gc
import json
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from assembled import build_parts, make_plan, make_update
from torch import Tensor

from convoy.checkpoint.background import BackgroundCheckpointWriter
from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.launch.world import World
from convoy.machine import keep_freed_memory
from convoy.run.process import ProcessContext, join_run
from convoy.run.state import TrainingState

PAGE = mmap.PAGESIZE
_PRESENT = np.uint64(1 << 63)  # flag of a pagemap entry: Documentation/admin-guide/mm/pagemap.rst


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of the optimizer state and of the process, after an update and after a save."""

    state: int
    resident: int  # between updates
    cached: int  # in memory, including the page cache of the system
    process: int
    copied: int  # resident right after a checkpoint was copied
    evicted: int  # resident after the state was evicted again
    copy_kept: int  # growth of the process by a save that keeps its copy
    copy_freed: int  # growth of the process by a save that frees its copy


def work(world: World, payload: dict[str, Any]) -> int:
    """The target of a worker process: measure one replica and write the result."""
    keep_freed_memory()  # as `convoy train` does
    folder = Path(payload["folder"])
    with join_run(world, make_plan(payload["options"])) as context:
        use = _measure(Replica(context, folder), folder)
    (folder / f"{world.rank}.json").write_text(json.dumps(asdict(use)))
    return 0


class Replica:
    """One process of a run: its update, optimizers and state."""

    def __init__(self, context: ProcessContext, folder: Path) -> None:
        parts = build_parts(context, scratch=folder)
        self.update = make_update(parts)
        self.optimizers = parts.optimizers
        self._state = TrainingState(parts)

    def contents(self, update: int) -> CheckpointContents | None:
        """A checkpoint's contents, on rank 0; shards are gathered, so all ranks must call it."""
        return self._state.capture(update, {})

    def evict(self) -> None:
        """Evict the optimizer state, as a run does after each save."""
        for optimizer in self.optimizers:
            optimizer.storage.evict()

    def state_bytes(self, count: Callable[[Tensor], int]) -> int:
        return sum(
            count(slot) for optimizer in self.optimizers for slot in optimizer.slots.values()
        )


def _measure(replica: Replica, folder: Path) -> MemoryUse:
    _process_bytes_after_updates(replica)
    state, resident = replica.state_bytes(lambda vector: vector.nbytes), _resident(replica)
    cached, process = replica.state_bytes(cached_bytes), process_bytes()
    with _saved(replica, folder, keep_copy=False):
        copied = _resident(replica)
        replica.evict()
        evicted = _resident(replica)
        copy_freed = _process_bytes_after_updates(replica) - process
    with _saved(replica, folder, keep_copy=True):
        copy_kept = _process_bytes_after_updates(replica) - process
    return MemoryUse(state, resident, cached, process, copied, evicted, copy_kept, copy_freed)


def _process_bytes_after_updates(replica: Replica) -> int:
    """Resident memory after two updates, which reuse the memory that is free in the process."""
    for _ in range(2):
        replica.update()
    gc.collect()
    return process_bytes()


def _resident(replica: Replica) -> int:
    return replica.state_bytes(resident_bytes)


@contextmanager
def _saved(replica: Replica, folder: Path, keep_copy: bool) -> Iterator[None]:
    """Save a checkpoint; inside the block the writer still exists."""
    store = CheckpointStore(folder / f"keep-copy-{keep_copy}")
    writer = BackgroundCheckpointWriter(store, 1, lambda *_: None, keep_copy=keep_copy)
    contents = replica.contents(1)
    if contents is not None:
        writer.save(contents)
    del contents
    writer.close()
    gc.collect()
    yield


def resident_bytes(vector: Tensor) -> int:
    """Bytes of the pages of a vector that are resident in this process."""
    first, pages = _pages(vector)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(8 * (first // PAGE))
        entries = np.frombuffer(file.read(8 * pages), np.uint64)
    return PAGE * int(np.count_nonzero(entries & _PRESENT))


def cached_bytes(vector: Tensor) -> int:
    """Bytes of the pages of a vector that are in memory, also in the page cache of the system."""
    first, pages = _pages(vector)
    flags = (ctypes.c_ubyte * pages)()
    call = ctypes.CDLL(None, use_errno=True).mincore
    if call(ctypes.c_void_p(first), ctypes.c_size_t(pages * PAGE), flags):
        raise OSError(ctypes.get_errno(), "mincore")
    return PAGE * sum(flag & 1 for flag in flags)


def _pages(vector: Tensor) -> tuple[int, int]:
    """The address of the first page and the number of pages."""
    first = vector.data_ptr() // PAGE * PAGE
    return first, -(-(vector.data_ptr() + vector.nbytes - first) // PAGE)


def process_bytes() -> int:
    """Resident memory of this process."""
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])
