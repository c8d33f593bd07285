"""What a conversion is asked for."""

from dataclasses import dataclass
from pathlib import Path

from convoy.data.records.record import Form
from convoy.data.source import Split


@dataclass(frozen=True)
class Sharding:
    """How many shards a split gets, or how many records a shard."""

    counts: tuple[int, ...] = ()  # of the training and the validation split
    records: int = 1024  # where no counts are given; the reference's tar shards have so many

    def count(self, split: Split, records: int) -> int | None:
        """None where the size of a shard is given."""
        if not self.counts:
            return None
        return min(records, self.counts[0 if split == "train" else -1])


@dataclass(frozen=True)
class Wish:
    """One conversion."""

    source: Path
    target: Path
    form: Form
    split: Split | None = None  # None: all that are there
    sharding: Sharding = Sharding()
    workers: int = 1
    shuffle: int | None = None  # the seed of another order
    most_bad: int | None = None  # records that may be left out; None: a bad one is an error
