"""Images per second of the data loader, compared with a plain Pillow loader and decoding alone.

    python benchmarks/data.py [--photos FOLDER] [--rounds 15] [--workers 2]

Photos: decode, random-resized crop to 224, flip. convoy is compared with torch's DataLoader with
Pillow and with decoding alone: at the size that each crop allows (an upper limit for every loader
that decodes as much), and always at half the size. CIFAR: pad, crop, flip, in batches of 128,
compared with the same steps in Pillow. All images are in memory. Each round runs every candidate
once, in random order.
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
from interleaved import parse_options, ratio_with_interval
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
PASSES = 3  # over the photos, per round
CIFAR_BATCH = 128
EPOCHS = 10  # of convoy, per epoch of the plain loader
Candidate = Callable[[], int]  # returns the number of images it prepared

_decoded = ThreadBuffer()


class InMemory:
    """Encoded photos in memory, with the interface of records."""

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
    """The feed of a run; its batches are bytes, as they are copied to a device."""
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
    """Run a feed for some epochs and count its images; no network consumes them."""
    indices = opened.indices(0, passes * opened.micro_batches_per_epoch)
    return sum(len(batch.images) for batch in opened.feed.host_batches(indices, opened.options))


class Decoder:
    """Decoding alone, of photos whose headers are known."""

    def __init__(self, encoded: list[bytes]) -> None:
        self.encoded = encoded
        self.headers = [read_header(photo) for photo in encoded]
        sizes = np.array([(header.height, header.width) for header in self.headers])
        windows, _ = training_windows(sizes, np.arange(len(encoded)), seed=0, epoch=0)
        self.min_sizes = np.ceil(sizes * SIZE / windows[:, [3, 2]]).astype(int).tolist()

    def at_crop_size(self, number: int) -> None:
        """Decode at the size that the crop allows."""
        decode(self.encoded[number], self.headers[number], tuple(self.min_sizes[number]), _decoded)

    def at_half_size(self, number: int) -> None:
        """Decode at half the size, whatever the crop."""
        header = self.headers[number]
        min_size = ceil(header.height / 2), ceil(header.width / 2)
        decode(self.encoded[number], header, min_size, _decoded)


def photo_candidates(
    encoded: list[bytes], workers: int, pool: ThreadPoolExecutor
) -> dict[str, Candidate]:
    opened = feed_from(PhotoSource(InMemory(encoded), "train"), "imagenet", SIZE, BATCH, workers)
    plain = loader(PillowPhotos(encoded, SIZE), BATCH, workers)
    decoder = Decoder(encoded)

    def by_threads(decoding: Callable[[int], None]) -> Candidate:
        def decode_batch(first: int) -> int:
            numbers = range(first, min(first + BATCH, len(encoded)))
            for number in numbers:
                decoding(number)
            return len(numbers)

        return lambda: sum(pool.map(decode_batch, [*range(0, len(encoded), BATCH)] * PASSES))

    return {
        "convoy": lambda: fed(opened, PASSES),
        "a Pillow loader": lambda: sum(len(batch) for _ in range(PASSES) for batch in plain),
        "decoding at the size each crop allows": by_threads(decoder.at_crop_size),
        "decoding at half the size": by_threads(decoder.at_half_size),
    }


def cifar_candidates(samples: int, workers: int) -> dict[str, Candidate]:
    source = CachedSource(GeneratedSource(samples, 32, 10, seed=0))
    plain = loader(PillowCifar(source.pixels(np.arange(samples))), CIFAR_BATCH, workers)
    opened = feed_from(source, "cifar10", 32, CIFAR_BATCH, workers)
    return {
        "convoy": lambda: fed(opened, EPOCHS),
        "a Pillow loader": lambda: sum(len(batch) for batch in plain),
    }


def rates(candidates: dict[str, Candidate], rounds: int) -> dict[str, list[float]]:
    """Images per second of each candidate and round; the first round is a warm-up."""
    results: dict[str, list[float]] = {name: [] for name in candidates}
    rng = random.Random(0)
    for round_number in range(rounds + 1):
        for name in rng.sample(list(candidates), len(candidates)):
            start = perf_counter()
            images = candidates[name]()
            if round_number > 0:
                results[name].append(images / (perf_counter() - start))
    return results


def print_table(title: str, results: dict[str, list[float]]) -> None:
    print(f"| {title} | images/s | convoy / this |\n|---|---|---|")
    for name, values in results.items():
        ratio, low, high = ratio_with_interval(results["convoy"], values)
        comparison = "" if name == "convoy" else f"{ratio:.2f} × [{low:.2f}, {high:.2f}]"
        print(f"| {name} | {median(values):,.0f} | {comparison} |")
    print(flush=True)


@contextmanager
def photos_in(folder: Path | None) -> Iterator[list[bytes]]:
    """The photos of the folder, or of the archive next to the repository, or none."""
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
    options = parse_options(parser, {"rounds": 1, "workers": 1, "cifar_samples": 256})
    keep_freed_memory()
    load_before = os.getloadavg()[0]
    with photos_in(options.photos) as encoded, ThreadPoolExecutor(options.workers) as pool:
        encoded = encoded[: 2 * BATCH] if options.smoke else encoded
        if encoded:
            candidates = photo_candidates(encoded, options.workers, pool)
            print_table(f"{len(encoded)} photos", rates(candidates, options.rounds))
        else:
            print(f"no photos: {ARCHIVE} does not exist; set --photos to a folder of photos")
    print_table(
        "CIFAR", rates(cifar_candidates(options.cifar_samples, options.workers), options.rounds)
    )
    print(
        f"{options.rounds} rounds, {options.workers} workers, {os.cpu_count()} cores, "
        f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


if __name__ == "__main__":
    main()
