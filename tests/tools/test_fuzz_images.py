"""Reading of damaged images; `make fuzz` tries a million of them."""

from collections.abc import Callable
from random import Random

import pytest
from fuzz_images import ERRORS, images, jpegs, read_header, read_image


def damaged(encoded: bytes, rng: Random) -> bytes:
    """Change some bytes, mostly in the header, and truncate some images."""
    output = bytearray(encoded)
    for _ in range(rng.choice((1, 2, 8))):
        output[min(rng.randrange(len(output)), rng.randrange(len(output)))] = rng.randrange(256)
    if rng.random() < 0.2:
        del output[rng.randrange(len(output)) :]
    return bytes(output)


@pytest.mark.parametrize("read", [read_header, read_image])
@pytest.mark.parametrize("seeds", [jpegs(), images()], ids=["jpegs", "images"])
def test_damaged_images_are_read_or_refused(
    seeds: list[bytes], read: Callable[[bytes], None]
) -> None:
    rng, refused = Random(0), 0
    for number in range(2000):
        try:
            read(damaged(seeds[number % len(seeds)], rng))
        except ERRORS:
            refused += 1

    assert 100 < refused < 2000


@pytest.mark.parametrize("encoded", images())
def test_intact_images_are_read(encoded: bytes) -> None:
    read_header(encoded)
    read_image(encoded)
