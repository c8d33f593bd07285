"""The TFRecord shards of a split: `train-00000-of-01024` and so on, complete and each only once."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from convoy.data.source import Split
from convoy.errors import ConfigError, DataError

BELOW = "imagenet-data"  # the folder that the reference looks for

_NAME = re.compile(r"(?P<split>train|validation)-(?P<number>\d{5,9})-of-(?P<count>\d{5,9})")
_CHUNK = 2**20
_ENDS = 2**12  # bytes that tell most shards of one size apart


def has_shards(folder: Path, split: Split) -> bool:
    """Whether anything here looks like a shard of this split."""
    return next(_named(folder, split), None) is not None


def shards_there(folder: Path, split: Split) -> tuple[Path, ...]:
    """What looks like a shard of this split, whether they are a set or not."""
    return tuple(sorted(path for path, _, _ in _named(folder, split)))


def find_shards(folder: Path, split: Split) -> tuple[Path, ...]:
    """All of them in order, from the folder or the one below; DataError if they are not a set."""
    homes = [home for home in (folder, folder / BELOW) if has_shards(home, split)]
    if not homes:
        raise ConfigError(f"{folder}: no shards {split}-?????-of-????? here, nor in {BELOW}")
    if len(homes) > 1:
        raise DataError(f"{folder}: {split} shards both here and in {BELOW}; name one of them")
    paths = _complete(homes[0], split)
    try:
        for path in paths:
            if not path.is_file():
                raise DataError(f"{path}: not a regular file")
        _refuse_copies(paths)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return paths


def _named(folder: Path, split: Split) -> Iterator[tuple[Path, int, int]]:
    """Path, number and count of what has the name of a shard."""
    try:
        for path in folder.iterdir() if folder.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if match and match["split"] == split:
                yield path, int(match["number"]), int(match["count"])
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error


def _complete(home: Path, split: Split) -> tuple[Path, ...]:
    """Every number once."""
    found: dict[int, list[Path]] = defaultdict(list)
    counts: dict[int, Path] = {}
    for path, number, count in _named(home, split):
        found[number].append(path)
        counts[count] = path
    if len(counts) > 1:
        names = " and ".join(counts[count].name for count in sorted(counts)[:2])
        raise DataError(f"{home}: shards of two sets: {names}; keep one of them")
    (count,) = counts
    several = next((paths for paths in found.values() if len(paths) > 1), None)
    if several:
        names = " and ".join(sorted(path.name for path in several))
        raise DataError(f"{home}: one shard under two names: {names}; remove one of them")
    last = max(found)
    if last >= count:
        raise DataError(f"{found[last][0]}: the last of {count} shards has the number {count - 1}")
    if len(found) < count:
        missing = next(number for number in range(count) if number not in found)
        raise DataError(
            f"{home}: {count - len(found)} of {count} {split} shards are missing, the first is "
            f"{split}-{missing:05}-of-{count:05}; copy them or convert the data again"
        )
    return tuple(found[number][0] for number in range(count))


def _refuse_copies(paths: tuple[Path, ...]) -> None:
    """The same records under two names would count twice in every epoch."""
    seen: dict[tuple[int, bytes, bytes], list[Path]] = defaultdict(list)
    sizes: dict[int, list[Path]] = defaultdict(list)
    for path in paths:
        sizes[path.stat().st_size].append(path)
    for size, alike in sizes.items():
        for path in alike if size and len(alike) > 1 else ():
            others = seen[size, *_ends(path, size)]
            for other in others:
                if _equal(path, other):
                    raise DataError(
                        f"{other} and {path.name} hold the same {size} bytes; get one of them anew"
                    )
            others.append(path)


def _ends(path: Path, size: int) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        first = file.read(_ENDS)
        file.seek(max(0, size - _ENDS))
        return first, file.read(_ENDS)


def _equal(path: Path, other: Path) -> bool:
    with path.open("rb") as one, other.open("rb") as two:
        while chunk := one.read(_CHUNK):
            if chunk != two.read(_CHUNK):
                return False
    return True
