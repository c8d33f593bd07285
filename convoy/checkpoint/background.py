"""Saving in the background: a copy is taken at once, and a thread writes and verifies it."""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from convoy.checkpoint.format import Contents, Tensors
from convoy.checkpoint.store import Store
from convoy.errors import StorageError

_ALIGNMENT = 64  # bytes: a cache line, and more than any dtype needs
_NICENESS = 10

OnSaved = Callable[[int, Path, float], None]  # update, folder, seconds of writing
OnFailed = Callable[[int, StorageError], None]  # update, error


def allocate_block(contents: Contents) -> Contents:
    """Uninitialised tensors of the same names, shapes and dtypes in one block, for `Contents.copy`.

    One large block is returned to the system when it is freed. Hundreds of small ones would not be:
    malloc keeps them for the next micro-batch (`machine.py`).
    """
    tensors = contents.tensors
    size = sum(_padded_bytes(tensor) for named in tensors.values() for tensor in named.values())
    block, end = torch.empty(size, dtype=torch.uint8), 0
    copies: dict[str, Tensors] = {part: {} for part in tensors}
    for part, named in tensors.items():
        for name, tensor in named.items():
            span = block[end : end + tensor.nbytes]
            copies[part][name] = span.view(tensor.dtype).view(tensor.shape)
            end += _padded_bytes(tensor)
    return Contents(**copies, state={})


def _padded_bytes(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def stop_the_run(update: int, error: StorageError) -> None:
    """The policy `stop`. A callback that only reports, and returns, is the policy `continue`."""
    raise StorageError(f"the checkpoint of update {update} was not saved: {error}") from error


def _lower_priority() -> None:
    """Training goes first: measured, a save then costs it less than half as much."""
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class BackgroundSaver:
    """Saves while training continues.

    Between saves the memory of the copy is kept for the next one, which is then quicker, or freed:
    a run that keeps its optimizer's state off the device has no memory to spare.
    """

    def __init__(
        self,
        store: Store,
        keep: int | None,  # None keeps all
        on_saved: OnSaved,
        on_failed: OnFailed = stop_the_run,
        keep_copy: bool = True,
    ) -> None:
        self._store = store
        self._keep = keep
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._keep_copy = keep_copy
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=_lower_priority)
        self._pending: tuple[int, Future[tuple[Path, float]]] | None = None
        self._copy: Contents | None = None
        self.waits = 0  # saves that found the one before still under way
        self.waited_seconds = 0.0

    def save(self, contents: Contents, update: int) -> None:
        """Copy now, write later; tensors may change as soon as this returns."""
        self._wait()
        self._report()
        copy = contents.copy(reuse=self._copy if self._keep_copy else allocate_block(contents))
        self._copy = copy if self._keep_copy else None  # then only the thread has it
        self._pending = update, self._thread.submit(self._write, copy, update)

    def check(self) -> None:
        """Call after every update: calls back for a finished save, raises for a failed one."""
        if self._pending and self._pending[1].done():
            self._report()

    def finish(self) -> None:
        """Wait for the last save and call back; nothing can be saved afterwards."""
        self._thread.shutdown(wait=True)
        self._report()

    def _wait(self) -> None:
        if self._pending is None or self._pending[1].done():
            return
        began = time.monotonic()
        self._pending[1].exception()
        self.waits += 1
        self.waited_seconds += time.monotonic() - began

    def _report(self) -> None:
        """Call back once for the save that is over."""
        if self._pending is None:
            return
        (update, future), self._pending = self._pending, None
        try:
            path, seconds = future.result()
        except StorageError as error:
            self._on_failed(update, error)
        else:
            self._on_saved(update, path, seconds)
        finally:
            del future  # an error refers to this frame and so to the copy, which would stay

    def _write(self, contents: Contents, update: int) -> tuple[Path, float]:
        """In the other thread: the new one is read back before an old one is removed."""
        began = time.monotonic()
        path = self._store.save(contents, update)
        self._store.verify(update)
        if self._keep is not None:
            self._store.prune(self._keep, spare=update)
        return path, time.monotonic() - began
