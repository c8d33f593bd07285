"""Background checkpointing: copy the state at once, then write and verify it in a thread."""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.errors import StorageError

_ALIGNMENT = 64  # bytes: a cache line, and more than any dtype needs
_THREAD_NICENESS = 10

SavedCallback = Callable[[int, Path, float], None]  # update, folder, seconds
SaveErrorCallback = Callable[[int, StorageError], None]  # update, error


def allocate_block(contents: CheckpointContents) -> CheckpointContents:
    """Allocate tensors of the same names, shapes and dtypes in one block, for a later `copy`.

    One large block is returned to the system when freed. Hundreds of small ones would not be:
    malloc keeps them for the next micro-batch (`machine.py`).
    """
    tensors = [tensor for named in contents.tensors.values() for tensor in named.values()]
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    chunks = iter(torch.empty(sum(sizes), dtype=torch.uint8).split_with_sizes(sizes))
    copies = {
        part: {
            name: next(chunks)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for name, tensor in named.items()
        }
        for part, named in contents.tensors.items()
    }
    return CheckpointContents(**copies, state={})


def raise_save_error(update: int, error: StorageError) -> None:
    """Raise: the policy `stop`. A callback that only reports is the policy `continue`."""
    raise StorageError(f"the checkpoint of update {update} was not saved: {error}") from error


def _lower_priority() -> None:
    """Give training priority: in measurements this more than halves the cost of a save."""
    if sys.platform == "linux":  # elsewhere threads have no separate niceness
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _THREAD_NICENESS)


class BackgroundCheckpointWriter:
    """Saves checkpoints while training continues.

    Between saves the memory of the copy is reused, which is faster, or freed: a run that offloads
    its optimizer state has no memory to spare.
    """

    def __init__(
        self,
        store: CheckpointStore,
        keep: int | None,  # None keeps all
        on_saved: SavedCallback,
        on_failed: SaveErrorCallback = raise_save_error,
        keep_copy: bool = True,
    ) -> None:
        self._store = store
        self._keep = keep
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._keep_copy = keep_copy
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=_lower_priority)
        self._pending: tuple[int, Future[tuple[Path, float]]] | None = None
        self._copy: CheckpointContents | None = None

    def save(self, contents: CheckpointContents) -> None:
        """Copy now, write later; tensors may be modified as soon as this returns."""
        self._finish_pending()
        copy = contents.copy(reuse=self._copy if self._keep_copy else allocate_block(contents))
        self._copy = copy if self._keep_copy else None  # the thread has the only reference
        self._pending = contents.update, self._thread.submit(self._save_and_verify, copy)

    def poll(self) -> None:
        """Run the callback of a finished or failed save. Call after every update."""
        if self._pending and self._pending[1].done():
            self._finish_pending()

    def close(self) -> None:
        """Wait for the last save and run its callback; no further saves are possible."""
        self._thread.shutdown(wait=True)
        self._finish_pending()

    def _finish_pending(self) -> None:
        """Wait for the pending save, if any, and run its callback."""
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
            del future  # a traceback would keep this frame and the copy alive

    def _save_and_verify(self, contents: CheckpointContents) -> tuple[Path, float]:
        """Runs in the thread: verify the new checkpoint before removing an old one."""
        start = time.monotonic()
        path = self._store.save(contents)
        self._store.verify(contents.update)
        if self._keep is not None:
            self._store.prune(self._keep, except_update=contents.update)
        return path, time.monotonic() - start
