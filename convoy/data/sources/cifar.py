"""CIFAR-10 and CIFAR-100 in the binary format, read into memory with every label checked.

A record is its label bytes (CIFAR-100: coarse, then fine; the last one is the class) and three
planes of 32 × 32 bytes, red first. Errors name the file, its size and the expected record size.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.data.source import Labels, Normalization, Pixels, Split
from convoy.data.sources.pixel_source import ArraySource
from convoy.errors import ConfigError, DataError

IMAGE_SIZE = 32
PIXEL_BYTES = 3 * IMAGE_SIZE * IMAGE_SIZE

_MAX_BYTES = 2**30  # of one file; the largest official one has 153 700 000
_MAX_NAME_BYTES = 2**16
_CHUNK = 1000  # records per read: 3 MB, so that a file is never in memory twice


@dataclass(frozen=True)
class CifarFormat:
    """The files of a dataset and the layout of a record."""

    title: str
    name: str  # for `convoy data fetch`
    folder: str
    files: Mapping[Split, tuple[str, ...]]
    label_limits: tuple[int, ...]  # exclusive upper bound of each label byte
    class_names_file: str
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
    class_names_file="batches.meta.txt",
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
    class_names_file="fine_label_names.txt",
    class_names=tuple(_FINE_NAMES.split()),
    normalization=Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)

CIFAR_FORMATS = {CIFAR10.name: CIFAR10, CIFAR100.name: CIFAR100}
_OTHER_FORMAT = {CIFAR10.name: CIFAR100, CIFAR100.name: CIFAR10}


def find_cifar_format(folder: Path) -> CifarFormat | None:
    """Return the format whose files are in the folder, or in its usual subfolder."""
    for cifar_format in CIFAR_FORMATS.values():
        names = [name for names in cifar_format.files.values() for name in names]
        parents = folder, folder / cifar_format.folder
        if any((parent / name).is_file() for parent in parents for name in names):
            return cifar_format
    return None


def open_cifar(cifar_format: CifarFormat, folder: Path, split: Split) -> ArraySource:
    """Open a split from the folder with the files, or from its parent."""
    data_folder = _find_folder(cifar_format, folder)
    paths = [data_folder / name for name in cifar_format.files[split]]
    _check_files_exist(cifar_format, data_folder, paths)
    try:
        counts = [_count_records(path, cifar_format) for path in paths]
        pixels = np.empty((sum(counts), IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        labels = np.empty(sum(counts), np.int64)
        ends = np.cumsum(counts)
        for path, count, end in zip(paths, counts, ends, strict=True):
            _read_records(path, cifar_format, pixels[end - count : end], labels[end - count : end])
        _check_no_duplicates(paths, np.split(pixels, ends[:-1]))
        names = _read_class_names(data_folder / cifar_format.class_names_file, cifar_format)
    except OSError as error:
        raise DataError(
            f"{error.filename or data_folder}: cannot be read: {error.strerror}"
        ) from error
    return ArraySource(pixels, labels, names, cifar_format.normalization)


def _find_folder(cifar_format: CifarFormat, folder: Path) -> Path:
    """Return the folder, or its usual subfolder if that contains more of the files."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder; set --data-dir or the environment variable DATA_DIR to the "
            f"folder with {cifar_format.title}"
        )
    names = [name for files in cifar_format.files.values() for name in files]

    def count_files(candidate: Path) -> int:
        return sum(_file_type(candidate / name) is not None for name in names)

    return max(folder, folder / cifar_format.folder, key=count_files)


def _file_type(path: Path) -> int | None:
    """Return the type bits of the file mode; None if the path does not exist."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a symlink loop, or a folder without permission
        raise DataError(f"{path}: {error.strerror}") from error


def _check_files_exist(cifar_format: CifarFormat, data_folder: Path, paths: list[Path]) -> None:
    missing = [path.name for path in paths if _file_type(path) is None]
    if not missing:
        return
    other = _OTHER_FORMAT[cifar_format.name]
    hint = ""
    if _file_type(data_folder / other.files["train"][0]) or _file_type(data_folder / other.folder):
        hint = f" (found files of {other.title} instead)"
    elif _file_type(data_folder / "cifar-10-batches-py") or _file_type(
        data_folder / "cifar-100-python"
    ):
        hint = " (found the pickle format, which is not supported)"
    raise DataError(
        f"{data_folder}: {cifar_format.title} is missing {', '.join(missing)}{hint}; "
        f"download it with {_fetch_command(cifar_format, data_folder)}"
    )


def _fetch_command(cifar_format: CifarFormat, data_folder: Path) -> str:
    folder = data_folder.parent if data_folder.name == cifar_format.folder else data_folder
    return f"`convoy data fetch {cifar_format.name} --data-dir {folder}`"


def _count_records(path: Path, cifar_format: CifarFormat) -> int:
    """Return the number of records in a file after checking its type and size."""
    if _file_type(path) != stat.S_IFREG:
        raise DataError(f"{path}: not a regular file")
    size = path.stat().st_size
    rest = size % cifar_format.record_bytes
    if size == 0:
        raise _bad_file_error(path, cifar_format, "the file is empty")
    if size > _MAX_BYTES:
        raise _bad_file_error(path, cifar_format, f"the limit is {_MAX_BYTES} bytes")
    if rest:
        raise _bad_file_error(
            path, cifar_format, f"{rest} extra bytes follow the last complete record"
        )
    return size // cifar_format.record_bytes


def _bad_file_error(path: Path, cifar_format: CifarFormat, reason: str) -> DataError:
    size, other, hint = path.stat().st_size, _OTHER_FORMAT[cifar_format.name], ""
    # 3073 and 3074 are coprime: only multiples of 9,446,402 bytes fit both formats, and then the
    # labels of the other format would be pixels.
    if size and not size % other.record_bytes:
        raw = np.fromfile(path, np.uint8, _CHUNK * other.record_bytes)
        if not len(_find_invalid_labels(raw.reshape(-1, other.record_bytes), other)):
            hint = f"; it looks like a file of {other.title}"
    return DataError(
        f"{path}: {size} bytes, but {cifar_format.title} records have "
        f"{cifar_format.record_bytes} bytes: {reason}{hint}; "
        f"download it again with {_fetch_command(cifar_format, path.parent)}"
    )


def _read_records(path: Path, cifar_format: CifarFormat, pixels: Pixels, labels: Labels) -> None:
    label_bytes = len(cifar_format.label_limits)
    with path.open("rb") as file:
        for start in range(0, len(labels), _CHUNK):
            count = min(_CHUNK, len(labels) - start)
            raw = np.fromfile(file, np.uint8, count * cifar_format.record_bytes)
            if len(raw) < count * cifar_format.record_bytes:
                raise _bad_file_error(
                    path, cifar_format, "the file was truncated while it was read"
                )
            records = raw.reshape(count, cifar_format.record_bytes)
            for record, byte in _find_invalid_labels(records, cifar_format):
                coarse = "coarse " if byte < label_bytes - 1 else ""
                reason = (
                    f"record {start + record} (counted from 0) has {coarse}label "
                    f"{records[record, byte]}, valid are 0 … {cifar_format.label_limits[byte] - 1}"
                )
                raise _bad_file_error(path, cifar_format, reason)
            labels[start : start + count] = records[:, label_bytes - 1]
            planes = records[:, label_bytes:].reshape(count, 3, IMAGE_SIZE, IMAGE_SIZE)
            pixels[start : start + count] = planes.transpose(0, 2, 3, 1)


def _find_invalid_labels(
    records: npt.NDArray[np.uint8], cifar_format: CifarFormat
) -> npt.NDArray[np.int64]:
    """Return (record, label byte) of every label out of range: (invalid, 2)."""
    limits = np.array(cifar_format.label_limits, np.uint8)
    return np.argwhere(records[:, : len(limits)] >= limits)


def _check_no_duplicates(paths: list[Path], pixels: list[Pixels]) -> None:
    """Refuse two files with the same images, which would be used twice per epoch."""
    for (path, images), (other, other_images) in combinations(zip(paths, pixels, strict=True), 2):
        # Comparing the first image is almost always enough.
        if np.array_equal(images[0], other_images[0]) and np.array_equal(images, other_images):
            raise DataError(f"{path} and {other.name} contain the same images; download them again")


def _read_class_names(path: Path, cifar_format: CifarFormat) -> tuple[str, ...]:
    """Read the class names; use the official ones if the file does not exist."""
    file_type = _file_type(path)
    if file_type is None:
        return cifar_format.class_names
    if file_type != stat.S_IFREG:
        raise DataError(f"{path}: not a regular file; remove it to use the official class names")
    with path.open("rb") as file:
        text = file.read(_MAX_NAME_BYTES).decode("utf-8", errors="replace")
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(set(names)) != len(cifar_format.class_names) or len(names) != len(set(names)):
        raise DataError(
            f"{path}: {len(names)} class names ({len(set(names))} unique), but "
            f"{cifar_format.title} has {len(cifar_format.class_names)}; "
            "remove the file to use the official class names"
        )
    return names
