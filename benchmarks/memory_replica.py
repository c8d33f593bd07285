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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convoy.assemble.network import build_network
from convoy.assemble.passage import make_passage, make_replicas
from convoy.assemble.post import Post, posted
from convoy.checkpoint.background import BackgroundSaver
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.config.schema import build_config
from convoy.engine.loss import CrossEntropy
from convoy.engine.update import Holding, Update
from convoy.launch.memory import keep_freed_memory
from convoy.launch.world import World
from convoy.models.batch_norm import absorb
from convoy.numerics.flat import FlatWeights
from convoy.numerics.gradients import GradientTree
from convoy.optim.optimizer import Optimizer, Owned
from convoy.optim.rules import Sgd
from convoy.optim.step import Step
from convoy.parallel.optimizer_state import gatherer, home_for
from convoy.plan.plan import plan_run

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
    with posted(world, plan_run(build_config(payload["asked"]))) as post:
        seen = _see(Replica(post, folder), folder)
    (folder / f"{world.rank}.json").write_text(json.dumps(asdict(seen)))
    return 0


class Replica:
    """Everything of a training that holds memory, made as a run makes it."""

    def __init__(self, post: Post, folder: Path) -> None:
        plan, config = post.plan, post.plan.config
        self.network = build_network(plan.network, post.stages, 0, post.device)
        replicas = make_replicas(post)
        flat = FlatWeights(self.network.slice.named_weights())
        home = home_for(post.device, config.memory.offload_optimizer, folder)
        owned = Owned(replicas.owned(flat.elements))
        self.optimizer = Optimizer(flat, Sgd(config.optimizer), owned, home)
        self._gather = gatherer(replicas, flat.elements)
        gradients = GradientTree(flat, post.at.replica * plan.batch.gradient_accumulation)
        loss = CrossEntropy(config.loss)
        passage = make_passage(post, self.network, loss, [gradients.collect])
        statistics = partial(absorb, self.network.norms)
        holdings = [Holding(gradients, self.optimizer)]
        self._update = Update(passage, holdings, replicas, statistics)
        size, samples = plan.network.image_size, plan.batch.micro_batch_size
        images = torch.randn(samples, size, size, 3).permute(0, 3, 1, 2)
        self._batch = images, torch.arange(samples)

    def update(self) -> None:
        self._update([self._batch], Step(0.01))

    def contents(self, update: int) -> Contents:
        """What a run saves; shards are made whole, so all replicas must ask."""
        state = self.optimizer.named_state(self._gather)
        return Contents(self.network.tensors(), state, state={"update": update})

    def state_bytes(self, count: Callable[[Tensor], int]) -> int:
        return sum(map(count, self.optimizer.slots.values()))


def _see(replica: Replica, folder: Path) -> Seen:
    _settle(replica)
    state, resident = replica.state_bytes(lambda vector: vector.nbytes), _resident(replica)
    cached, process = replica.state_bytes(cached_bytes), process_bytes()
    with _saved(replica, folder, keep_copy=False):
        read_in = _resident(replica)
        replica.optimizer.home.rest()
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
    store = Store(folder / f"kept-{replica.optimizer.owned.start}-{keep_copy}")
    saver = BackgroundSaver(store, 1, lambda *_: None, keep_copy=keep_copy)
    saver.save(replica.contents(1), 1)
    saver.finish()
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
