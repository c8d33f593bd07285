"""`metadata.json` beside tar shards: how many samples they hold, and what was done to them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.config.user_text import shown
from convoy.data.records.index import MOST_CLASSES
from convoy.data.source import Split
from convoy.errors import ConfigError, DataError

NAME = "metadata.json"

_MOST_BYTES = 2**24


@dataclass(frozen=True)
class Metadata:
    """What concerns one split; all of it may be missing."""

    length: int | None = None
    steps_done: tuple[str, ...] = ()  # such as `Resize(256)`, applied before the images were saved
    class_names: tuple[str, ...] = ()


def read_metadata(folder: Path, split: Split) -> Metadata:
    """What the file says, where there is one."""
    path = folder / NAME
    if not path.exists():
        return Metadata()
    table = _table(path)
    if table.get("format", "img") != "img":
        raise ConfigError(
            f"{path}: samples in the format {shown(str(table['format']))} are pickled tensors, "
            "which can run anything when they are read; make the shards anew with images "
            "(format img), or `convoy data convert` the folder they were made from"
        )
    return Metadata(
        length=_length(path, table, f"{split}_length"),
        steps_done=_texts(path, table, f"{split}_transform_pipeline"),
        class_names=_class_names(path, table),
    )


def _table(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(_MOST_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: no JSON ({error}); correct or remove it") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: holds no names and values; correct or remove it")
    return table


def _length(path: Path, table: Mapping[str, Any], key: str) -> int | None:
    value = table.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise DataError(f"{path}: {key} is {shown(str(value))}, not a number of samples")
    return value


def _texts(path: Path, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"{path}: {key} is no list of texts")
    return tuple(value)


def _class_names(path: Path, table: Mapping[str, Any]) -> tuple[str, ...]:
    names = _texts(path, table, "class_names")
    if len(set(names)) < len(names) or len(names) > MOST_CLASSES:
        raise DataError(
            f"{path}: {len(names)} class_names, {len(set(names))} of them different; at most "
            f"{MOST_CLASSES} are read, and no name twice"
        )
    return names
