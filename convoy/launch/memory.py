"""How the C library treats freed memory: it keeps it, because the next micro-batch wants it back.

By default glibc gives the top of its heap to the system again and again and takes it back page by
page. What is known of the gain, and what is not, stands in docs/benchmarks.md.
"""

import ctypes
import os

_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_LARGEST_KEPT = 32 * 2**20  # glibc's own upper limit: larger blocks always come from the system
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Blocks up to 32 MiB are used again; the user's own setting wins."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
