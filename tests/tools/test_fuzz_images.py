"""The gate before images under damaged bytes; `make fuzz` throws a million of them."""

from collections.abc import Callable
from random import Random

import pytest
from fuzz_images import ERRORS, images, jpegs, read_header, read_image


def damaged(encoded: bytes, chance: Random) -> bytes:
    """Some bytes changed, most of them in the header; sometimes cut."""
    output = bytearray(encoded)
    for _ in range(chance.choice((1, 2, 8))):
        output[min(chance.randrange(len(output)), chance.randrange(len(output)))] = (
            chance.randrange(256)
        )
    if chance.random() < 0.2:
        del output[chance.randrange(len(output)) :]
    return bytes(output)


@pytest.mark.parametrize("read", [read_header, read_image])
@pytest.mark.parametrize("seeds", [jpegs(), images()], ids=["jpegs", "images"])
def test_damaged_images_are_read_or_refused(
    seeds: list[bytes], read: Callable[[bytes], None]
) -> None:
    chance, refused = Random(0), 0
    for number in range(2000):
        try:
            read(damaged(seeds[number % len(seeds)], chance))
        except ERRORS:
            refused += 1

    assert 100 < refused < 2000


@pytest.mark.parametrize("encoded", images())
def test_what_is_not_damaged_is_read(encoded: bytes) -> None:
    read_header(encoded)
    read_image(encoded)
