"""Outfeed: results that leave a loop or a pipeline while it runs."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Condition, Thread, current_thread, main_thread
from threading import enumerate as all_threads
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.data.infeed import as_element, check_count, check_same_structure

_POLL_SECONDS = 0.2  # how often a waiting reader looks whether anything can still arrive
_WARN_SECONDS = 30.0  # how long a full outfeed waits before it says so

# The loop iteration of the current thread: (loop, iteration); None outside of loops.
current_iteration: ContextVar[tuple[int, int] | None] = ContextVar("iteration", default=None)


@dataclass(frozen=True)
class ResultGatherer:
    """Brings the results of all replicas to all processes."""

    peers: dist.ProcessGroup | None  # the processes with results, one per replica
    replicas: int
    group: dist.ProcessGroup | None = None  # the processes of this replica
    source: int = 0  # the process with results in `group`
    is_source: bool = True

    @classmethod
    def of_processes(cls) -> "ResultGatherer | None":
        """Every process of torch.distributed is a replica, if there are several."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return None
        return cls(dist.group.WORLD, dist.get_world_size())

    def check_equal_counts(self, results: int) -> None:
        counts = self.gather(torch.tensor([results])).flatten().tolist()
        if {*counts} != {results}:
            raise RuntimeError(
                f"the replicas have {counts} results; all processes must run the same iterations "
                "and call dequeue at the same time"
            )

    def gather(self, stacked: Tensor) -> Tensor:
        """(iterations, …) → (iterations, replicas, …), or unchanged with one replica."""
        stacked = stacked.contiguous()
        if self.peers is not None:
            parts = [torch.empty_like(stacked) for _ in range(self.replicas)]
            if self.is_source and stacked.numel():
                dist.all_gather(parts, stacked, group=self.peers)
            stacked = torch.stack(parts, 1)
        if self.group is not None and stacked.numel():
            dist.broadcast(stacked, group=self.group, group_src=self.source)
        return stacked


class Outfeed:
    """Collects one result per iteration: a tensor, a tuple or a dictionary of tensors.

    Args:
        mode: `all` keeps every result, `last` only the most recent one.
        buffer_depth: Maximum number of buffered results; `enqueue` blocks while the buffer is
            full. By default it is unlimited.
    """

    def __init__(
        self, mode: Literal["all", "last"] = "all", *, buffer_depth: int | None = None
    ) -> None:
        if mode not in ("all", "last"):
            raise ValueError(f"mode must be 'all' or 'last', got {mode!r}")
        if buffer_depth is not None:
            check_count("buffer_depth", buffer_depth)
        self.mode = mode
        self._depth = buffer_depth
        self._results: deque[Any] = deque()
        self._first: Any = None
        self._iteration: tuple[int, int] | None = None  # of the last result
        self._is_closed = False
        self._gatherer: ResultGatherer | None = None
        self._is_source = True  # whether this process has the results
        self._producer: Thread | None = None  # of the last result
        self._condition = Condition()

    def enqueue(self, result: Any) -> None:
        """Add the result of an iteration; call this once per iteration."""
        iteration = current_iteration.get()
        if iteration is not None and iteration == self._iteration:
            raise ValueError("enqueue was called twice in one iteration; enqueue one tuple or dict")
        self._iteration = iteration
        self.put(result)

    def put(self, result: Any) -> None:
        """Add a result. Called by pipelines, several times in an iteration."""
        value = _detach(as_element(result)) if self._is_source else as_element(result)
        with self._condition:
            if self._first is None:
                self._first = value
            check_same_structure(value, self._first, "this result")
            if self.mode == "last":
                self._results.clear()
            self._producer = current_thread()
            self._wait_for_space()
            self._results.append(value)
            self._condition.notify_all()

    def _wait_for_space(self) -> None:
        """Wait for a reader; one that does not come is a likely mistake."""
        if not self._condition.wait_for(lambda: not self._is_full, _WARN_SECONDS):
            warnings.warn(
                f"the outfeed is full ({self._depth} results), and nothing has read it for "
                f"{_WARN_SECONDS:.0f} s; read it in another thread, or remove buffer_depth",
                stacklevel=4,
            )
            self._condition.wait_for(lambda: not self._is_full)

    @property
    def _is_full(self) -> bool:
        return self._is_source and self._depth is not None and len(self._results) >= self._depth

    def connect(self, gatherer: "ResultGatherer | None", is_source: bool) -> None:
        """Set how the results reach all processes; other processes than the source only count."""
        self._gatherer, self._is_source = gatherer, is_source

    def dequeue(self) -> Any:
        """Return the results so far and remove them: stacked as (iterations, …) in mode `all`.

        With several replicas the shape is (iterations, replicas, …), or (replicas, …) in mode
        `last`; all processes must call this, and all get the results.
        """
        with self._condition:
            if self._first is None:
                raise ValueError("nothing was enqueued yet")
            results = list(self._results)
            self._results.clear()
            self._condition.notify_all()
        if self.mode == "last" and not results:
            raise ValueError("no result since the last dequeue")
        stacked = _stack(results, self._first)
        gatherer = self._gatherer or ResultGatherer.of_processes()
        if gatherer is not None:
            gatherer.check_equal_counts(len(results))
            stacked = map_tensors(gatherer.gather, stacked)
        return stacked if self.mode == "all" else map_tensors(lambda tensor: tensor[-1], stacked)

    def __iter__(self) -> Iterator[Any]:
        """Yield the results that are available now, one iteration at a time."""
        self._check_streams()
        while True:
            with self._condition:
                if not self._results:
                    return
                result = self._results.popleft()
                self._condition.notify_all()
            yield result

    def stream(self) -> Iterator[Any]:
        """Yield results as they arrive, from another thread, until `close` is called."""
        self._check_streams()
        while True:
            with self._condition:
                while not (self._results or self._is_closed or self._is_abandoned):
                    self._condition.wait(_POLL_SECONDS)
                if not self._results:
                    return
                result = self._results.popleft()
                self._condition.notify_all()
            yield result

    @property
    def _is_abandoned(self) -> bool:
        """Whether the program has ended without `close`, for example by an error or Ctrl-C.

        Python waits for a thread that reads a stream, which must not wait for results then.
        """
        if main_thread().is_alive():
            return False
        if self._producer is not None:
            return not self._producer.is_alive()
        others = (item for item in all_threads() if item is not current_thread())
        return not any(item.is_alive() and not item.daemon for item in others)

    def close(self) -> None:
        """End `stream` after the remaining results."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def _check_streams(self) -> None:
        if self.mode == "last":
            raise RuntimeError("only an outfeed with mode 'all' can be iterated; use dequeue")
        if not self._is_source:
            raise RuntimeError("only the process of the last stage can iterate; use dequeue")


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    match value:
        case Tensor():
            return function(value)
        case dict():
            return {name: map_tensors(function, inner) for name, inner in value.items()}
        case _:
            return tuple(map_tensors(function, inner) for inner in value)


def _detach(value: Any) -> Any:
    """Copy results: the loop may overwrite its tensors."""
    return map_tensors(lambda tensor: tensor.detach().clone(), value)


def _stack(results: list[Any], example: Any) -> Any:
    match example:
        case Tensor():
            return torch.stack(results) if results else example.new_empty((0, *example.shape))
        case dict():
            return {name: _stack([r[name] for r in results], example[name]) for name in example}
        case _:
            return tuple(
                _stack([result[index] for result in results], inner)
                for index, inner in enumerate(example)
            )
