"""CIFAR-10 and CIFAR-100 in their binary form: read once, every label checked, kept as pixels.

A record is its label bytes (CIFAR-100: coarse, then fine; the last one is the class) and three
planes of 32 × 32 bytes, red first. A file that cannot be right is named with both its sizes.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.data.source import Ids, Labels, Normalization, Pixels, Split
from convoy.data.sources.pixel_source import PixelSource
from convoy.errors import ConfigError, DataError

SIDE = 32
PIXEL_BYTES = 3 * SIDE * SIDE

_MOST_BYTES = 2**30  # of one file; the largest official one has 153 700 000
_MOST_NAME_BYTES = 2**16
_CHUNK = 1000  # records read together: 3 MB, so a file is never held twice


@dataclass(frozen=True)
class CifarFormat:
    """Where a data set keeps its files, and what a record looks like."""

    title: str
    name: str  # as `convoy data fetch` knows it
    folder: str
    files: Mapping[Split, tuple[str, ...]]
    label_limits: tuple[int, ...]  # each label byte lies below its own
    names_file: str
    class_names: tuple[str, ...]
    normalization: Normalization

    @property
    def record_bytes(self) -> int:
        return len(self.label_limits) + PIXEL_BYTES


CIFAR10 = CifarFormat(
    title="CIFAR-10",
    name="cifar10",
    folder="cifar-10-batches-bin",
    files={
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "validation": ("test_batch.bin",),
    },
    label_limits=(10,),
    names_file="batches.meta.txt",
    class_names=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    normalization=Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
)

_FINE_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = CifarFormat(
    title="CIFAR-100",
    name="cifar100",
    folder="cifar-100-binary",
    files={"train": ("train.bin",), "validation": ("test.bin",)},
    label_limits=(20, 100),
    names_file="fine_label_names.txt",
    class_names=tuple(_FINE_NAMES.split()),
    normalization=Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)

_OTHER = {CIFAR10.name: CIFAR100, CIFAR100.name: CIFAR10}


class CifarSource(PixelSource):
    """One split, in memory. Made by `cifar10` and `cifar100`, which check what they read."""

    image_size = SIDE

    def __init__(
        self, pixels: Pixels, labels: Labels, names: tuple[str, ...], normalization: Normalization
    ) -> None:
        self.class_names = names
        self.normalization = normalization
        self._pixels = pixels
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def pixels(self, ids: Ids) -> Pixels:
        return self._pixels.take(ids, axis=0)

    def labels(self, ids: Ids) -> Labels:
        return self._labels.take(ids)


def _open(form: CifarFormat, folder: Path, split: Split) -> CifarSource:
    """From a folder that holds the files, or holds the folder that its archive unpacks to."""
    home = _home(form, folder)
    paths = [home / name for name in form.files[split]]
    _refuse_missing(form, home, paths)
    try:
        counts = [_count_records(path, form) for path in paths]
        pixels = np.empty((sum(counts), SIDE, SIDE, 3), np.uint8)
        labels = np.empty(sum(counts), np.int64)
        ends = np.cumsum(counts)
        for path, count, end in zip(paths, counts, ends, strict=True):
            _read(path, form, pixels[end - count : end], labels[end - count : end])
        _refuse_copies(paths, np.split(pixels, ends[:-1]))
        names = _class_names(home / form.names_file, form)
    except OSError as error:
        raise DataError(f"{error.filename or home}: cannot be read: {error.strerror}") from error
    return CifarSource(pixels, labels, names, form.normalization)


cifar10 = partial(_open, CIFAR10)
cifar100 = partial(_open, CIFAR100)  # with its fine labels


def _home(form: CifarFormat, folder: Path) -> Path:
    """The folder itself, or the one below it when that holds more of the files."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder; name the one with {form.title} in --data-dir or in the "
            f"environment variable DATA_DIR"
        )
    names = [name for files in form.files.values() for name in files]
    homes = [folder, folder / form.folder]
    return max(homes, key=lambda home: sum(_kind(home / name) is not None for name in names))


def _kind(path: Path) -> int | None:
    """What a path leads to, as the file system counts kinds; None for nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a loop of links, a folder that may not be entered
        raise DataError(f"{path}: {error.strerror}") from error


def _refuse_missing(form: CifarFormat, home: Path, paths: list[Path]) -> None:
    missing = [path.name for path in paths if _kind(path) is None]
    if not missing:
        return
    other = _OTHER[form.name]
    instead = ""
    if _kind(home / other.files["train"][0]) or _kind(home / other.folder):
        instead = f" (but files of {other.title})"
    elif _kind(home / "cifar-10-batches-py") or _kind(home / "cifar-100-python"):
        instead = " (but the pickle form, which is never read)"
    raise DataError(
        f"{home}: {form.title} lacks {', '.join(missing)}{instead}. Get it: {_way_out(form, home)}"
    )


def _way_out(form: CifarFormat, home: Path) -> str:
    folder = home.parent if home.name == form.folder else home
    return f"`convoy data fetch {form.name} --data-dir {folder}`"


def _count_records(path: Path, form: CifarFormat) -> int:
    """How many records a file holds, once its kind and size are right."""
    if _kind(path) != stat.S_IFREG:
        raise DataError(f"{path}: not a regular file; {form.title} is read from files only")
    size = path.stat().st_size
    rest = size % form.record_bytes
    if size == 0:
        raise _bad_file(path, form, "it is empty")
    if size > _MOST_BYTES:
        raise _bad_file(path, form, f"a file may have {_MOST_BYTES} bytes")
    if rest:
        raise _bad_file(path, form, f"{rest} bytes follow the last whole record")
    return size // form.record_bytes


def _bad_file(path: Path, form: CifarFormat, reason: str) -> DataError:
    size = path.stat().st_size
    other = _OTHER[form.name]
    swap = f" It looks like a file of {other.title}." if _fits(path, other, size) else ""
    return DataError(
        f"{path}: {size} bytes, to be read as {form.title} records of {form.record_bytes} "
        f"bytes: {reason}.{swap} Get it anew: {_way_out(form, path.parent)}"
    )


def _fits(path: Path, form: CifarFormat, size: int) -> bool:
    """Whether the size, and the labels of the first records, are those of the form."""
    # 3073 and 3074 have no common divisor: only multiples of 9 446 402 bytes suit both, and there
    # the other form's labels would be pixels.
    if size == 0 or size % form.record_bytes:
        return False
    raw = np.fromfile(path, np.uint8, _CHUNK * form.record_bytes)
    return len(_wrong_labels(raw.reshape(-1, form.record_bytes), form)) == 0


def _read(path: Path, form: CifarFormat, pixels: Pixels, labels: Labels) -> None:
    label_bytes = len(form.label_limits)
    with path.open("rb") as file:
        for start in range(0, len(labels), _CHUNK):
            count = min(_CHUNK, len(labels) - start)
            raw = np.fromfile(file, np.uint8, count * form.record_bytes)
            if len(raw) < count * form.record_bytes:
                raise _bad_file(path, form, "it became shorter while it was read")
            records = raw.reshape(count, form.record_bytes)
            for record, byte in _wrong_labels(records, form):
                coarse = "coarse " if byte < label_bytes - 1 else ""
                reason = (
                    f"record {start + record} (the first is 0) has the {coarse}label "
                    f"{records[record, byte]}, known are 0 … {form.label_limits[byte] - 1}"
                )
                raise _bad_file(path, form, reason)
            labels[start : start + count] = records[:, label_bytes - 1]
            planes = records[:, label_bytes:].reshape(count, 3, SIDE, SIDE)
            pixels[start : start + count] = planes.transpose(0, 2, 3, 1)


def _wrong_labels(records: npt.NDArray[np.uint8], form: CifarFormat) -> npt.NDArray[np.int64]:
    """(record, label byte) of every label that is not below its limit: (wrong, 2)."""
    limits = np.array(form.label_limits, np.uint8)
    return np.argwhere(records[:, : len(limits)] >= limits)


def _refuse_copies(paths: list[Path], pixels: list[Pixels]) -> None:
    """The same images under two names would count twice in every epoch."""
    for (path, own), (other, others) in combinations(zip(paths, pixels, strict=True), 2):
        # The first image settles almost every pair without a look at the rest.
        if np.array_equal(own[0], others[0]) and np.array_equal(own, others):
            raise DataError(f"{path} and {other.name} hold the same images; fetch them anew")


def _class_names(path: Path, form: CifarFormat) -> tuple[str, ...]:
    """The names in the data set's own file, or the official ones where it has none."""
    kind = _kind(path)
    if kind is None:
        return form.class_names
    if kind != stat.S_IFREG:
        raise DataError(f"{path}: not a regular file; without it the official names are used")
    with path.open("rb") as file:
        text = file.read(_MOST_NAME_BYTES).decode("utf-8", errors="replace")
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(set(names)) != len(form.class_names) or len(names) != len(set(names)):
        raise DataError(
            f"{path}: {len(names)} class names ({len(set(names))} different), {form.title} has "
            f"{len(form.class_names)}; without this file the official ones are used"
        )
    return names
