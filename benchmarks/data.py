"""Images per second, as bytes for a network: ours against a plain Pillow loader and bare decoding.

    python benchmarks/data.py [--photos FOLDER] [--rounds 15] [--workers 2]

Photos: decode, random-resized crop to 224, mirror. Beside ours run torch's DataLoader with Pillow,
and decoding alone: at the size that each crop allows (what nobody can pass without decoding less),
and always at half the size. CIFAR: pad, crop, mirror, in batches of 128, beside the same by Pillow.
All images lie in memory. A round runs every contender once, in another order each time.
"""

import argparse
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from assembled import CPU
from interleaved import options_of, ratio_with_interval
from plain_loader import PillowCifar, PillowPhotos, loader

from convoy.config.schema import build_config
from convoy.data.images.crop import training_windows
from convoy.data.images.decode import decode, read_header
from convoy.data.images.resize import ThreadBuffer
from convoy.data.records.ledger import RecordLocation
from convoy.data.records.record import NO_BOXES, EncodedImage
from convoy.data.source import Source
from convoy.data.sources.photos import PhotoSource
from convoy.data.sources.pixel_source import CachedSource, GeneratedSource
from convoy.machine import keep_freed_memory
from convoy.run.open_feed import OpenFeed, feed_from_source

ARCHIVE = Path(__file__).parents[2] / "shared/data/photos.tar"
SIZE = 224
BATCH = 32  # photos
PASSES = 3  # over the photos, in a round
CIFAR_BATCH = 128
EPOCHS = 10  # of ours, for one of the plain loader
Contender = Callable[[], int]  # does its work, and tells how many images it made

_decoded = ThreadBuffer()


class InMemory:
    """Encoded photos behind the face of records."""

    class_names = ("photo", "other")

    def __init__(self, encoded: list[bytes]) -> None:
        self.encoded = encoded
        self.labels = np.zeros(len(encoded), np.int64)

    def __len__(self) -> int:
        return len(self.encoded)

    def location(self, index: int) -> RecordLocation:
        return RecordLocation("memory", number=index)

    def read(self, index: int) -> EncodedImage:
        return EncodedImage(self.encoded[index], NO_BOXES)


def feed_from(source: Source, data: str, size: int, batch: int, workers: int) -> OpenFeed:
    """The feed of a real run, its batches bytes, as they would travel to a device."""
    values = {
        "data": data,
        "data_dir": ".",
        "model": "resnet20" if data == "cifar10" else "resnet50",
        "image_size": size,
        "num_classes": 10,
        "micro_batch_size": batch,
        "dataloader_worker": workers,
        "eight_bit_io": True,
    }
    return feed_from_source(build_config(values), source, CPU)


def fed(opened: OpenFeed, passes: int) -> int:
    """Run a feed of ours for so many epochs; what a network does with it is not measured."""
    places = opened.indices(0, passes * opened.micro_batches_per_epoch)
    return sum(len(one.images) for one in opened.feed.host_batches(places, opened.options))


class Bare:
    """Decoding and nothing else, of photos whose headers are known."""

    def __init__(self, encoded: list[bytes]) -> None:
        self.encoded = encoded
        self.headers = [read_header(one) for one in encoded]
        sizes = np.array([(header.height, header.width) for header in self.headers])
        windows, _ = training_windows(sizes, np.arange(len(encoded)), seed=0, epoch=0)
        self.least = np.ceil(sizes * SIZE / windows[:, [3, 2]]).astype(int).tolist()

    def at_crop_size(self, number: int) -> None:
        """At the size that its crop allows."""
        decode(self.encoded[number], self.headers[number], tuple(self.least[number]), _decoded)

    def halved(self, number: int) -> None:
        """At half the size, whatever is wanted."""
        header = self.headers[number]
        least = ceil(header.height / 2), ceil(header.width / 2)
        decode(self.encoded[number], header, least, _decoded)


def photo_contenders(
    encoded: list[bytes], workers: int, pool: ThreadPoolExecutor
) -> dict[str, Contender]:
    opened = feed_from(PhotoSource(InMemory(encoded), "train"), "imagenet", SIZE, BATCH, workers)
    plain = loader(PillowPhotos(encoded, SIZE), BATCH, workers)
    bare = Bare(encoded)

    def by_threads(decoding: Callable[[int], None]) -> Contender:
        def some(first: int) -> int:
            numbers = range(first, min(first + BATCH, len(encoded)))
            for number in numbers:
                decoding(number)
            return len(numbers)

        return lambda: sum(pool.map(some, [*range(0, len(encoded), BATCH)] * PASSES))

    return {
        "ours": lambda: fed(opened, PASSES),
        "a Pillow loader": lambda: sum(len(batch) for _ in range(PASSES) for batch in plain),
        "decoding at the size each crop allows": by_threads(bare.at_crop_size),
        "decoding at half the size": by_threads(bare.halved),
    }


def cifar_contenders(samples: int, workers: int) -> dict[str, Contender]:
    source = CachedSource(GeneratedSource(samples, 32, 10, seed=0))
    plain = loader(PillowCifar(source.pixels(np.arange(samples))), CIFAR_BATCH, workers)
    opened = feed_from(source, "cifar10", 32, CIFAR_BATCH, workers)
    return {
        "ours": lambda: fed(opened, EPOCHS),
        "a Pillow loader": lambda: sum(len(batch) for batch in plain),
    }


def rates(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Images per second of each, by rounds; the first one warms up and is not counted."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    chance = random.Random(0)
    for done in range(rounds + 1):
        for name in chance.sample(list(contenders), len(contenders)):
            began = perf_counter()
            images = contenders[name]()
            if done:
                found[name].append(images / (perf_counter() - began))
    return found


def tell(title: str, found: dict[str, list[float]]) -> None:
    print(f"| {title} | images/s | ours against it |\n|---|---|---|")
    for name, some in found.items():
        middle, low, high = ratio_with_interval(found["ours"], some)
        against = "" if name == "ours" else f"{middle:.2f} × [{low:.2f}, {high:.2f}]"
        print(f"| {name} | {median(some):,.0f} | {against} |")
    print(flush=True)


@contextmanager
def photos_in(folder: Path | None) -> Iterator[list[bytes]]:
    """The photos of a folder, or those of the archive beside this repository, or none."""
    with TemporaryDirectory() as unpacked:
        if folder is None and ARCHIVE.exists():
            folder = Path(unpacked)
            with tarfile.open(ARCHIVE) as archive:
                archive.extractall(folder, filter="data")
        files = [] if folder is None else sorted(folder.rglob("*.JPEG"))
        yield [file.read_bytes() for file in files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, help="a folder of .JPEG files, at any depth")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cifar-samples", type=int, default=10_240)
    options = options_of(parser, {"rounds": 1, "workers": 1, "cifar_samples": 256})
    keep_freed_memory()
    before = os.getloadavg()[0]
    with photos_in(options.photos) as encoded, ThreadPoolExecutor(options.workers) as pool:
        encoded = encoded[: 2 * BATCH] if options.smoke else encoded
        if encoded:
            contenders = photo_contenders(encoded, options.workers, pool)
            tell(f"{len(encoded)} photos", rates(contenders, options.rounds))
        else:
            print(f"no photos: {ARCHIVE} is not there, and --photos names no folder of them")
    tell("CIFAR", rates(cifar_contenders(options.cifar_samples, options.workers), options.rounds))
    print(
        f"{options.rounds} rounds, {options.workers} workers, {os.cpu_count()} cores, "
        f"load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


if __name__ == "__main__":
    main()
