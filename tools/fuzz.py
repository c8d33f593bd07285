"""Damages right inputs at random and gives them to readers, which may raise documented errors only.

The inputs are a function of the seed. One that breaks a reader is written down as a file.
"""

import argparse
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz_targets import Target, targets

Change = Callable[[bytearray, Random], None]

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Outcome:
    """What a target made of its inputs."""

    inputs: int
    refused: int
    breaking: bytes | None = None
    trace: str = ""


def flip_bits(data: bytearray, chance: Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: Random) -> None:
    del data[chance.randrange(len(data)) :]


def drop(data: bytearray, chance: Random) -> None:
    start = chance.randrange(len(data))
    del data[start : start + chance.randrange(1, 9)]


def repeat(data: bytearray, chance: Random) -> None:
    start = chance.randrange(len(data))
    data[start:start] = data[start : start + chance.randrange(1, 33)]


def put_number(data: bytearray, chance: Random) -> None:
    """One of the numbers at which arithmetic turns, or any."""
    width = chance.choice((1, 2, 4, 8))
    number = chance.choice(_NUMBERS) if chance.random() < 0.7 else chance.getrandbits(64)
    start = chance.randrange(len(data))
    data[start : start + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")


def put_noise(data: bytearray, chance: Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = chance.randbytes(chance.randrange(1, 17))


CHANGES: tuple[Change, ...] = (flip_bits, flip_bits, cut, drop, repeat, put_number, put_noise)


def damaged(seeds: Sequence[bytes], chance: Random) -> bytes:
    """A seed after one to four changes, or the head of one with the tail of another."""
    data = bytearray(chance.choice(seeds))
    if chance.random() < 0.1:
        other = chance.choice(seeds)
        data[chance.randrange(len(data) + 1) :] = other[chance.randrange(len(other) + 1) :]
    for _ in range(chance.choice((1, 1, 2, 4))):
        if data:
            chance.choice(CHANGES)(data, chance)
    return bytes(data)


def fuzz(target: Target, inputs: int, seed: str) -> Outcome:
    """Stops at the first input that raises what it may not."""
    chance = Random(seed)
    refused = 0
    for number in range(inputs):
        data = target.repair(damaged(target.seeds, chance), chance)
        try:
            target.read(data)
        except target.errors:
            refused += 1
        except Exception:
            return Outcome(number + 1, refused, data, traceback.format_exc())
    return Outcome(inputs, refused)


def main() -> int:
    """Read the command line, run the targets, tell how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help="all, if none is named")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    memory = Path("/dev/shm")  # a file a time is written: not on a disk, where that can be helped
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        known = targets(Path(scratch))
        unknown = sorted(set(options.names) - known.keys())
        if unknown:
            parser.error(f"no target {unknown[0]}; there are {', '.join(known)}")
        return max(_run(name, known[name], options) for name in options.names or known)


def _run(name: str, target: Target, options: argparse.Namespace) -> int:
    start = time.monotonic()
    outcome = fuzz(target, options.inputs, f"{options.seed} {name}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{name}: {outcome.inputs:,} inputs, {outcome.refused:,} refused, "
        f"{time.monotonic() - start:.0f} s, at most {peak} MB",
        flush=True,
    )
    if outcome.breaking is None:
        return 0
    path = Path(f"fuzz-{name}.bin")
    path.write_bytes(outcome.breaking)
    print(f"{outcome.trace}{name}: broken by the input in {path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
