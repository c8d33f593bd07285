"""The tar shards of a split: `train-000000.tar` and so on, plain and without gaps.

What the reference keeps below `distributed/` repeats samples of these, and is not looked at.
"""

import os
import re
from pathlib import Path

from convoy.config.user_text import printable
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError

_PREFIXES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val"),
}
_NUMBER = re.compile(r"\D*(\d{1,18})\.tar", re.ASCII)


def has_tar_shards(folder: Path, split: Split) -> bool:
    """Whether anything here looks like a shard of this split."""
    return any(_named(folder, prefix) for prefix in _PREFIXES[split])


def tar_shards_there(folder: Path, split: Split) -> tuple[Path, ...]:
    """What looks like a shard of this split, whether they are a set or not."""
    return tuple(path for prefix in _PREFIXES[split] for path in _named(folder, prefix))


def find_tar_shards(folder: Path, split: Split) -> tuple[Path, ...]:
    """All of them, sorted by name; an error if they are not a set that can be read."""
    found = [paths for prefix in _PREFIXES[split] if (paths := _named(folder, prefix))]
    if not found:
        wanted = " or ".join(f"{prefix}-000000.tar" for prefix in _PREFIXES[split])
        raise ConfigError(f"{folder}: no tar shards of the {split} split, such as {wanted}")
    if len(found) > 1:
        names = " and ".join(paths[0].name for paths in found)
        raise ConfigError(f"{folder}: shards under two names, {names}; keep one kind of them")
    _refuse_packed(found[0])
    _refuse_gaps(folder, found[0])
    return tuple(found[0])


def _named(folder: Path, prefix: str) -> list[Path]:
    """`train-000001.tar`, `train_1.tar`, `train.tar` and packed ones; not `training.tar`."""
    own = re.compile(rf"{prefix}([^a-zA-Z].*)?\.(tar(\.\w+)?|tgz)", re.DOTALL)
    try:
        paths = [path for path in folder.iterdir() if own.fullmatch(path.name)]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error
    return sorted(paths, key=lambda path: os.fsencode(path.name))


def _refuse_packed(paths: list[Path]) -> None:
    for path in paths:
        if path.suffix != ".tar":
            raise DataError(
                f"{printable(str(path))}: a compressed shard; samples are read in any order, "
                "which that does not allow: unpack it to a plain .tar"
            )
        if not path.is_file():
            raise DataError(f"{printable(str(path))}: not a regular file")


def _refuse_gaps(folder: Path, paths: list[Path]) -> None:
    """Where all names are numbered, from 0 or from 1, no number is missing and none comes twice."""
    matches = [_NUMBER.fullmatch(path.name) for path in paths]
    numbered = [(int(match[1]), match[0]) for match in matches if match]
    if len(numbered) < len(paths):
        return
    numbered.sort()
    first = min(numbered[0][0], 1)
    for expected, (number, name) in enumerate(numbered, start=first):
        if number < expected:
            raise DataError(f"{folder}: {name} is there under another name too; keep one of them")
        if number > expected:
            count = numbered[-1][0] - first + 1
            raise DataError(
                f"{folder}: {count - len(paths)} of {count} shards are missing, number {expected} "
                f"is the first ({name} is there); copy them, or number the shards anew"
            )
