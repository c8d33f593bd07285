"""Fuzz the readers of data files: damaged inputs may raise documented errors only.

The inputs are a function of the seed. An input that raises another error is written to a file.
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
    """The results of a target."""

    inputs: int
    rejected: int
    failing: bytes | None = None
    trace: str = ""


def flip_bits(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def drop(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randrange(1, 9)]


def repeat(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    data[start:start] = data[start : start + rng.randrange(1, 33)]


def put_number(data: bytearray, rng: Random) -> None:
    """Overwrite bytes with a boundary value of integer arithmetic, or with a random number."""
    width = rng.choice((1, 2, 4, 8))
    number = rng.choice(_NUMBERS) if rng.random() < 0.7 else rng.getrandbits(64)
    start = rng.randrange(len(data))
    data[start : start + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")


def put_noise(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.randbytes(rng.randrange(1, 17))


CHANGES: tuple[Change, ...] = (flip_bits, flip_bits, cut, drop, repeat, put_number, put_noise)


def damage(seeds: Sequence[bytes], rng: Random) -> bytes:
    """Change a seed one to four times; sometimes join the start of one and the end of another."""
    data = bytearray(rng.choice(seeds))
    if rng.random() < 0.1:
        other = rng.choice(seeds)
        data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.choice((1, 1, 2, 4))):
        if data:
            rng.choice(CHANGES)(data, rng)
    return bytes(data)


def fuzz(target: Target, inputs: int, seed: str) -> Outcome:
    """Run a target until the first input that raises an undocumented error."""
    rng = Random(seed)
    rejected = 0
    for number in range(inputs):
        data = target.repair(damage(target.seeds, rng), rng)
        try:
            target.read(data)
        except target.errors:
            rejected += 1
        except Exception:
            return Outcome(number + 1, rejected, data, traceback.format_exc())
    return Outcome(inputs, rejected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    memory = Path("/dev/shm")  # faster than a disk for many small files
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        all_targets = targets(Path(scratch))
        unknown = sorted(set(options.names) - all_targets.keys())
        if unknown:
            parser.error(f"no target {unknown[0]}; the targets are {', '.join(all_targets)}")
        names = options.names or all_targets
        return max(_run(name, all_targets[name], options) for name in names)


def _run(name: str, target: Target, options: argparse.Namespace) -> int:
    start = time.monotonic()
    outcome = fuzz(target, options.inputs, f"{options.seed} {name}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{name}: {outcome.inputs:,} inputs, {outcome.rejected:,} rejected, "
        f"{time.monotonic() - start:.0f} s, peak memory {peak} MB",
        flush=True,
    )
    if outcome.failing is None:
        return 0
    path = Path(f"fuzz-{name}.bin")
    path.write_bytes(outcome.failing)
    print(f"{outcome.trace}{name}: the input that fails is in {path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
