"""Who takes the micro-batches of a feed while it is measured: nobody, or a stand-in for a model."""

from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter, sleep

from convoy.data.feed import MicroBatch

Consumer = Callable[[Iterator[MicroBatch]], None]  # takes what one update needs


class Emptying:
    """Lets go of everything at once."""

    def __init__(self, micro_batches: int) -> None:
        self._micro_batches = micro_batches

    def __call__(self, micro_batches: Iterator[MicroBatch]) -> None:
        for _ in islice(micro_batches, self._micro_batches):
            pass


class Waiting:
    """Takes its time, as a device of that speed would, and leaves the cores to others."""

    def __init__(self, micro_batches: int, images_per_second: float) -> None:
        self._micro_batches = micro_batches
        self._images_per_second = images_per_second

    def __call__(self, micro_batches: Iterator[MicroBatch]) -> None:
        for one in islice(micro_batches, self._micro_batches):
            assert one.images is not None
            until = perf_counter() + len(one.images) / self._images_per_second
            while (left := until - perf_counter()) > 0:
                sleep(left)
