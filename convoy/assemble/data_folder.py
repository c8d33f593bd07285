"""What only the files of a data set can tell, found before a run is planned."""

from dataclasses import dataclass
from pathlib import Path

from convoy.data.records.indexing import Notice, Progress, unheard
from convoy.data.records.opening import open_records, splits_in


@dataclass(frozen=True)
class Found:
    """What lies in a folder."""

    classes: int
    train: int | None  # samples; None where the split is not there


def look_into(folder: Path, notice: Notice, progress: Progress) -> Found:
    """Open all splits that are there.

    On the way an index is made of data that needs one: once, by one process.
    """
    found = {split: open_records(folder, split, notice, progress) for split in splits_in(folder)}
    classes = max(len(records.class_names) for records in found.values())
    return Found(classes, len(found["train"]) if "train" in found else None)


def look_quietly(folder: Path) -> Found:
    """The same in a process beside the one that tells."""
    return look_into(folder, unheard, unheard)
