"""Outfeed: results that leave a loop or a pipeline while it runs."""

from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from threading import Condition
from typing import Any, Literal

import torch
from torch import Tensor

from convoy.data.infeed import as_element, check_same_form

# The loop iteration of the current thread: (loop, iteration); None outside of loops.
current_iteration: ContextVar[tuple[int, int] | None] = ContextVar("iteration", default=None)


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
        if buffer_depth is not None and buffer_depth < 1:
            raise ValueError(f"buffer_depth must be at least 1, got {buffer_depth}")
        self.mode = mode
        self._depth = buffer_depth
        self._results: deque[Any] = deque()
        self._first: Any = None
        self._iteration: tuple[int, int] | None = None  # of the last result
        self._is_closed = False
        self._changed = Condition()

    def enqueue(self, result: Any) -> None:
        """Add the result of an iteration; call this once per iteration."""
        iteration = current_iteration.get()
        if iteration is not None and iteration == self._iteration:
            raise ValueError("enqueue was called twice in one iteration; enqueue one tuple or dict")
        self._iteration = iteration
        value = _detach(as_element(result))
        with self._changed:
            if self._first is None:
                self._first = value
            check_same_form(value, self._first, "this result")
            if self.mode == "last":
                self._results.clear()
            while self._depth is not None and len(self._results) >= self._depth:
                self._changed.wait()
            self._results.append(value)
            self._changed.notify_all()

    def dequeue(self) -> Any:
        """Return the results so far and remove them: stacked as (iterations, …) in mode `all`."""
        with self._changed:
            if self._first is None:
                raise ValueError("nothing was enqueued yet")
            results = list(self._results)
            self._results.clear()
            self._changed.notify_all()
        if self.mode == "last":
            if not results:
                raise ValueError("no result since the last dequeue")
            return results[-1]
        return _stack(results, self._first)

    def __iter__(self) -> Iterator[Any]:
        """Yield the results that are available now, one iteration at a time."""
        self._check_streams()
        while True:
            with self._changed:
                if not self._results:
                    return
                result = self._results.popleft()
                self._changed.notify_all()
            yield result

    def stream(self) -> Iterator[Any]:
        """Yield results as they arrive, from another thread, until `close` is called."""
        self._check_streams()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._results or self._is_closed)
                if not self._results:
                    return
                result = self._results.popleft()
                self._changed.notify_all()
            yield result

    def close(self) -> None:
        """End `stream` after the results that are still waiting."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _check_streams(self) -> None:
        if self.mode == "last":
            raise RuntimeError("only an outfeed with mode 'all' can be iterated; use dequeue")


def _detach(value: Any) -> Any:
    """Copy results: the loop may overwrite its tensors."""
    match value:
        case Tensor():
            return value.detach().clone()
        case dict():
            return {name: _detach(inner) for name, inner in value.items()}
        case _:
            return tuple(_detach(inner) for inner in value)


def _stack(results: list[Any], form: Any) -> Any:
    match form:
        case Tensor():
            return torch.stack(results) if results else form.new_empty((0, *form.shape))
        case dict():
            return {name: _stack([r[name] for r in results], form[name]) for name in form}
        case _:
            return tuple(
                _stack([result[index] for result in results], inner)
                for index, inner in enumerate(form)
            )
