"""A worker ends when its supervisor does, however that happened: they hold the ends of one pipe.

The usual way, prctl(PR_SET_PDEATHSIG), watches the thread that forked the worker. That is the
forkserver's, which outlives the supervisor as long as a worker does. So the kernel is asked for
SIGKILL as soon as the other end of the pipe closes; it reaches even a stopped process.
"""

import fcntl
import os
import select
import signal
import sys
import threading


def hold(descriptor: int) -> None:
    """From now on this process lives only as long as somebody has the pipe's other end open."""
    if sys.platform == "linux":
        _let_the_kernel_watch(descriptor)
    else:
        threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()
    if _is_cut(descriptor, milliseconds=0):  # before the kernel was watching
        _end()


def _let_the_kernel_watch(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)


def _watch(descriptor: int) -> None:
    _is_cut(descriptor, milliseconds=None)
    _end()


def _is_cut(descriptor: int, milliseconds: int | None) -> bool:
    """Nothing is ever sent, so whatever can be heard is the end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(milliseconds))


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
