"""Counter-based random numbers: a pure function of (seed, words, counters), and the position of a
stage in the run, which layers that draw random numbers need to know.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: splitmix64's step
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(state: U64) -> U64:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    state = state ^ (state >> np.uint64(30))  # a new one; from here on it is changed in place
    state *= _FIRST
    state ^= state >> np.uint64(27)
    state *= _SECOND
    state ^= state >> np.uint64(31)
    return state


def key(*words: int | str) -> int:
    """One 64-bit key for a stream, from its seed and its names; 3 and numpy's 3 are one word."""
    text = "\x1f".join(_spelled(word) for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _spelled(word: int | str) -> str:
    """A word with its type; the separator is doubled, so that no word can pass for two."""
    if isinstance(word, str):
        return "str:" + word.replace("\x1f", "\x1f\x1f")
    return f"int:{index(word)}"


def bits(stream: int, *counters: npt.ArrayLike) -> U64:
    """64 random bits for each tuple of counters; the counters broadcast."""
    state: U64 = np.full((), stream, np.uint64)  # grows with the first counters that are many
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _mix(state + _GOLDEN * (np.asarray(counter).astype(np.uint64) + np.uint64(1)))
        return _mix(state + _GOLDEN)


def uniform(stream: int, *counters: npt.ArrayLike) -> F64:
    """Evenly spread in [0, 1), on the grid of 2^-53."""
    return (bits(stream, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(stream: int, below: int, *counters: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Whole numbers in [0, below), `below` ≤ 2^53; each one's chance is 1/below within 2^-52."""
    return np.floor(uniform(stream, *counters) * below).astype(np.int64)


def permutation(stream: int, size: int) -> npt.NDArray[np.int64]:
    """An order of 0 … size − 1; ties of the 64-bit draws are settled by the index."""
    return np.argsort(bits(stream, np.arange(size)), kind="stable")


@dataclass
class StepPosition:
    """The micro-batch that a stage computes. A replica's micro-batches enter in order."""

    micros: range = range(1)  # those of an update that pass here, counted over all replicas
    begun: int = 0  # that have entered in training, since the first update of the run
    number: int = 0  # the current one, counted likewise

    @property
    def update(self) -> int:
        return self.number // len(self.micros)

    @property
    def micro(self) -> int:
        """Counted over all replicas."""
        return self.micros[self.number % len(self.micros)]

    def resume_after(self, updates: int) -> None:
        """So many updates are done."""
        self.begun = updates * len(self.micros)

    def advance(self) -> None:
        """The next micro-batch enters."""
        self.number = self.begun
        self.begun += 1

    @contextmanager
    def replay(self, number: int) -> Iterator[None]:
        """Back to an earlier micro-batch, which is recomputed."""
        current, self.number = self.number, number
        try:
            yield
        finally:
            self.number = current
