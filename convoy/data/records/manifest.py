"""`convoy-manifest.json`: what a conversion wrote, by which a shard that lost records is known.

A shard cut exactly between two records looks whole by itself; only such a list can tell.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.data.records.index import MOST_CLASSES, Index
from convoy.data.source import Split
from convoy.errors import DataError

NAME = "convoy-manifest.json"
JOURNAL = ".convoy-conversion.jsonl"  # in the place of the manifest until all is written

_MOST_BYTES = 2**24  # of the manifest itself; 1,152 shards take 200,000


@dataclass(frozen=True)
class Told:
    """A shard as it was written."""

    bytes: int
    records: int
    sha256: str


def read_told(folder: Path, split: Split) -> Mapping[str, Told] | None:
    """The shards of a split by name; None where no manifest tells of them."""
    with _understood(folder) as table:
        shards = table.get("splits", {}).get(split)
        return None if shards is None else {one["name"]: _told(one) for one in shards["shards"]}


def read_class_names(folder: Path) -> tuple[str, ...]:
    """Of all classes, those without a record too; none where no manifest tells of them."""
    with _understood(folder) as table:
        names = table.get("class_names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("names are texts")
        if len(names) > MOST_CLASSES:
            raise ValueError("too many of them")
        return tuple(names)


@contextmanager
def _understood(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The table in the file, empty where there is none; whatever is wrong in it is one error."""
    path = folder / NAME
    try:
        yield _table(path) if path.is_file() else {}
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: not a manifest of `convoy data convert`; remove it to do without its checks"
        ) from error


def _table(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        table = json.loads(file.read(_MOST_BYTES))
    if not isinstance(table["splits"], dict):
        raise TypeError("splits have names")
    return dict(table)


def _told(entry: Any) -> Told:
    told = Told(entry["bytes"], entry["records"], entry["sha256"])
    if type(told.bytes) is not int or type(told.records) is not int:
        raise TypeError("sizes are whole numbers")
    if not isinstance(told.sha256, str):
        raise TypeError("checksums are texts")
    return told


def refuse_unfinished(folder: Path) -> None:
    """What a conversion has not finished looks like a smaller set of data."""
    if (folder / JOURNAL).exists() and not (folder / NAME).exists():
        raise DataError(
            f"{folder}: `convoy data convert` has not finished here; give it the same words again "
            "and it goes on"
        )


def refuse_other_shards(folder: Path, told: Mapping[str, Told], names: list[str]) -> None:
    """The shards on disk are those that were written, no more and no less."""
    lacking = sorted(told.keys() - set(names))
    foreign = sorted(set(names) - told.keys())
    if lacking or foreign:
        parts = [f"lacks {lacking[0]}{_more(lacking)}"] if lacking else []
        parts += [f"has {foreign[0]}{_more(foreign)}, which is not listed"] if foreign else []
        raise DataError(
            f"{folder}: {NAME} lists {len(told)} shards, the folder {' and '.join(parts)}; "
            f"convert the data again"
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def refuse_lost_records(folder: Path, told: Mapping[str, Told], index: Index) -> None:
    """A shard without a visible fault holds what was written.

    One with a fault is left to the policy for bad records: it is counted there.
    """
    faulty = {fault.file for fault in index.faults}
    for file in index.files:
        then = told[file.name]
        if file.name not in faulty and (then.bytes, then.records) != (file.bytes, file.records):
            raise DataError(
                f"{folder / file.name}: {file.records} records in {file.bytes} bytes, but {NAME} "
                f"lists {then.records} in {then.bytes}; convert the data again, or copy this shard"
            )
