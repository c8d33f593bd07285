"""Records in order → parts of the target, each written whole: a shard, or a class folder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from convoy.chance import key, permutation
from convoy.data.convert.wish import Sharding
from convoy.data.records.record import UNKNOWN
from convoy.data.records.tar_writing import shard_name
from convoy.data.source import Ids, Labels, Split
from convoy.errors import ConfigError

MOST_SHARDS = 50_000  # of a split: a manifest lists them all, and names have five digits


@dataclass(frozen=True, eq=False)
class Part:
    """What lies under one name in the end."""

    name: str  # below the target
    split: Split
    numbers: Ids  # of its records in the source
    first: int  # how many records of the split come before it


def usable(labels: Labels, shuffle: int | None) -> Ids:
    """The numbers of all records that are not known to be bad, in the order of the target."""
    numbers = np.flatnonzero(labels != UNKNOWN)
    if shuffle is None:
        return numbers
    return numbers[permutation(key(shuffle, "conversion"), len(numbers))]


def by_class(numbers: Ids, labels: Labels) -> Ids:
    """Class after class, and within each as before."""
    return numbers[np.argsort(labels[numbers], kind="stable")]


def tfrecord_parts(split: Split, numbers: Ids, sharding: Sharding) -> Iterator[Part]:
    """`train-00000-of-01024`"""
    starts = _starts(split, len(numbers), sharding)
    for shard, start in enumerate(starts):
        own = numbers[start : (*starts, len(numbers))[shard + 1]]
        yield Part(f"{split}-{shard:05}-of-{len(starts):05}", split, own, start)


def tar_parts(split: Split, numbers: Ids, sharding: Sharding) -> Iterator[Part]:
    """`train-000000.tar`"""
    starts = _starts(split, len(numbers), sharding)
    for shard, start in enumerate(starts):
        own = numbers[start : (*starts, len(numbers))[shard + 1]]
        yield Part(shard_name(split, shard), split, own, start)


def class_parts(
    split: Split, numbers: Ids, labels: Labels, folders: Sequence[str]
) -> Iterator[Part]:
    """`train/n01530575`, also where the split has none of that class: it keeps its number so."""
    first = np.searchsorted(labels[numbers], np.arange(len(folders) + 1))
    for label, folder in enumerate(folders):
        own = numbers[first[label] : first[label + 1]]
        yield Part(f"{split}/{folder}", split, own, int(first[label]))


def _starts(split: Split, records: int, sharding: Sharding) -> list[int]:
    """Where each shard begins; they differ by one record at most, or only the last is shorter."""
    count = sharding.count(split, records)
    if count is None:
        starts = list(range(0, records, sharding.records))
    else:
        starts = [records * shard // count for shard in range(count)]
    if len(starts) > MOST_SHARDS:
        raise ConfigError(
            f"{len(starts):,} shards for {records:,} records of the {split} split; at most "
            f"{MOST_SHARDS:,} are written: use larger ones"
        )
    return starts
