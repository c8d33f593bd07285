"""Memory that a thread uses again and again: fresh pages for each image would cost more than it."""

from threading import local

import numpy as np
import numpy.typing as npt

MOST_KEPT = 16 * 2**20  # bytes of each piece; larger images are rare, and pay for themselves


class Scratch(local):
    """One piece of bytes for each thread; what was written is gone at the next call."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)

    def __call__(self, count: int) -> npt.NDArray[np.uint8]:
        """So many bytes, of any content."""
        if count > MOST_KEPT:
            return np.empty(count, np.uint8)
        if count > len(self._kept):
            self._kept = np.empty(min(2 * count, MOST_KEPT), np.uint8)
        return self._kept[:count]
