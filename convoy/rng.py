"""Counter-based random numbers, a pure function of (seed, words, counters), and the step position,
which layers need to draw them.
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

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: splitmix64's step
FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)


def _mix(state: U64) -> U64:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    state = state ^ (state >> np.uint64(30))  # a copy, which is modified in place below
    state *= FIRST_MULTIPLIER
    state ^= state >> np.uint64(27)
    state *= SECOND_MULTIPLIER
    state ^= state >> np.uint64(31)
    return state


def key(*parts: int | str) -> int:
    """Derive the 64-bit key of a stream from its seed and names; NumPy integers count as int."""
    text = "\x1f".join(_encode(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _encode(word: int | str) -> str:
    """Encode a word with its type; the separator is escaped, so that one word never equals two."""
    if isinstance(word, str):
        return "str:" + word.replace("\x1f", "\x1f\x1f")
    return f"int:{index(word)}"


def bits(stream: int, *counters: npt.ArrayLike) -> U64:
    """64 random bits for each tuple of counters; the counters broadcast."""
    state: U64 = np.full((), stream, np.uint64)  # broadcasts with the counters
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _mix(state + GOLDEN * (np.asarray(counter).astype(np.uint64) + np.uint64(1)))
        return _mix(state + GOLDEN)


def uniform(stream: int, *counters: npt.ArrayLike) -> F64:
    """Uniform numbers in [0, 1), multiples of 2^-53."""
    return (bits(stream, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(stream: int, high: int, *counters: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Integers in [0, high), `high` ≤ 2^53; each has probability 1/high within 2^-52."""
    return np.floor(uniform(stream, *counters) * high).astype(np.int64)


def permutation(stream: int, size: int) -> npt.NDArray[np.int64]:
    """A random permutation of 0 … size − 1; the index breaks ties between equal random bits."""
    return np.argsort(bits(stream, np.arange(size)), kind="stable")


@dataclass
class StepPosition:
    """The micro-batch that a stage computes. The micro-batches of a replica enter in order."""

    micro_batches: range = range(1)  # of one update in this replica, numbered over all replicas
    num_entered: int = 0  # training micro-batches since the first update of the run
    current: int = 0  # number of the current micro-batch since the first update

    @property
    def update(self) -> int:
        return self.current // len(self.micro_batches)

    @property
    def micro(self) -> int:
        """Index within the update, over all replicas."""
        return self.micro_batches[self.current % len(self.micro_batches)]

    def resume_after(self, updates: int) -> None:
        self.num_entered = updates * len(self.micro_batches)

    def advance(self) -> None:
        self.current = self.num_entered
        self.num_entered += 1

    @contextmanager
    def replay(self, number: int) -> Iterator[None]:
        """Return to an earlier micro-batch for its recomputation."""
        latest, self.current = self.current, number
        try:
            yield
        finally:
            self.current = latest
