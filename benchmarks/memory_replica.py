"""One replica of `memory.py`, in a process of its own: an update, a save, and what stayed resident.

Pages are looked up in /proc/self/pagemap, so a vector is measured alone, wherever it lies.
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
from assembled import parts_of, plan_of, update_of
from torch import Tensor

from convoy.checkpoint.background import BackgroundCheckpointWriter
from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.launch.world import World
from convoy.machine import keep_freed_memory
from convoy.run.process import ProcessContext, join_run
from convoy.run.state import TrainingState

PAGE = mmap.PAGESIZE
_PRESENT = np.uint64(1 << 63)  # of an entry of pagemap: Documentation/admin-guide/mm/pagemap.rst


@dataclass(frozen=True)
class Seen:
    """Bytes of optimizer state, and of the process, after an update and after a save."""

    state: int
    resident: int  # between updates
    cached: int  # held by the system, for us or for the file
    process: int
    read_in: int  # resident right after a checkpoint was copied
    rested: int  # and after the state was put aside again
    copy_kept: int  # growth of the process by a save that keeps its copy
    copy_given_back: int  # and by one that does not


def work(world: World, payload: dict[str, Any]) -> int:
    """A target of the supervisor: measure one replica and write it down."""
    keep_freed_memory()  # as `convoy train` does
    folder = Path(payload["folder"])
    with join_run(world, plan_of(payload["asked"])) as context:
        seen = _see(Replica(context, folder), folder)
    (folder / f"{world.rank}.json").write_text(json.dumps(asdict(seen)))
    return 0


class Replica:
    """One process of a run, and what of it holds memory."""

    def __init__(self, context: ProcessContext, folder: Path) -> None:
        parts = parts_of(context, scratch=folder)
        self.update = update_of(parts)
        self.optimizers = parts.optimizers
        self._state = TrainingState(parts)

    def contents(self, update: int) -> CheckpointContents | None:
        """What the first process saves; shards are made whole, so all replicas must ask."""
        return self._state.capture(update, {})

    def rest(self) -> None:
        """As a run does after each save."""
        for one in self.optimizers:
            one.storage.evict()

    def state_bytes(self, count: Callable[[Tensor], int]) -> int:
        return sum(count(slot) for one in self.optimizers for slot in one.slots.values())


def _see(replica: Replica, folder: Path) -> Seen:
    _settle(replica)
    state, resident = replica.state_bytes(lambda vector: vector.nbytes), _resident(replica)
    cached, process = replica.state_bytes(cached_bytes), process_bytes()
    with _saved(replica, folder, keep_copy=False):
        read_in = _resident(replica)
        replica.rest()
        rested = _resident(replica)
        given_back = _settle(replica) - process
    with _saved(replica, folder, keep_copy=True):
        kept = _settle(replica) - process
    return Seen(state, resident, cached, process, read_in, rested, kept, given_back)


def _settle(replica: Replica) -> int:
    """The process after updates: what is free inside it has been taken up by then."""
    for _ in range(2):
        replica.update()
    gc.collect()
    return process_bytes()


def _resident(replica: Replica) -> int:
    return replica.state_bytes(resident_bytes)


@contextmanager
def _saved(replica: Replica, folder: Path, keep_copy: bool) -> Iterator[None]:
    """While this lasts the save is over and the saver still there."""
    store = CheckpointStore(folder / f"kept-{keep_copy}")
    saver = BackgroundCheckpointWriter(store, 1, lambda *_: None, keep_copy=keep_copy)
    contents = replica.contents(1)
    if contents is not None:
        saver.save(contents)
    del contents
    saver.close()
    gc.collect()
    yield


def resident_bytes(vector: Tensor) -> int:
    """Pages of a vector that this process has in memory now."""
    first, pages = _pages(vector)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(8 * (first // PAGE))
        entries = np.frombuffer(file.read(8 * pages), np.uint64)
    return PAGE * int(np.count_nonzero(entries & _PRESENT))


def cached_bytes(vector: Tensor) -> int:
    """Pages of a vector that are in memory for whomever: a file's stay in the system's cache."""
    first, pages = _pages(vector)
    found = (ctypes.c_ubyte * pages)()
    call = ctypes.CDLL(None, use_errno=True).mincore
    if call(ctypes.c_void_p(first), ctypes.c_size_t(pages * PAGE), found):
        raise OSError(ctypes.get_errno(), "mincore")
    return PAGE * sum(one & 1 for one in found)


def _pages(vector: Tensor) -> tuple[int, int]:
    """Address of the first page, and how many there are."""
    first = vector.data_ptr() // PAGE * PAGE
    return first, -(-(vector.data_ptr() + vector.nbytes - first) // PAGE)


def process_bytes() -> int:
    """Resident memory of this process."""
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])
