"""What is converted: the splits of a folder in any form, and all that is known of each image."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from convoy.data.hearing import Hearing
from convoy.data.images.gate import ImageError, look
from convoy.data.records.manifest import refuse_unfinished
from convoy.data.records.opening import Stored, find_place, open_place, splits_in
from convoy.data.records.record import BadRecordError, Form
from convoy.data.records.sample import Sample
from convoy.data.records.tfrecord import TfRecords
from convoy.data.source import Split
from convoy.errors import DataError

WORDS = "LOC_synset_mapping.txt"  # a line a class: its name, then what that means

_MOST_BYTES = 2**24


@dataclass(frozen=True)
class Source:
    """All splits that are converted together."""

    homes: Mapping[Split, Path]
    forms: Mapping[Split, Form]
    splits: Mapping[Split, Stored]
    class_names: tuple[str, ...]
    words: Mapping[str, str]

    def sample(self, split: Split, number: int) -> Sample:
        """One image with everything that belongs to it; its header is looked at."""
        records = self.splits[split]
        record = records.read(number)
        encoded = bytes(record.encoded)
        try:
            header = look(encoded)
        except ImageError as error:
            raise BadRecordError(records.spot(number), str(error)) from error
        name = self.class_names[int(records.labels[number])]
        words = records.words(number)[1] if isinstance(records, TfRecords) else ""
        return Sample(
            encoded=encoded,
            label=int(records.labels[number]),
            synset=name,
            filename=records.file_name(number),
            width=header.width,
            height=header.height,
            text=words or self.words.get(name, ""),
            boxes=record.boxes,
        )

    def stamp(self) -> str:
        """What tells this data from other data in its place."""
        parts = [(split, records.stamp()) for split, records in self.splits.items()]
        return hashlib.sha256(repr((parts, self.class_names)).encode()).hexdigest()


def open_source(folder: Path, split: Split | None, hearing: Hearing) -> Source:
    """One split, or all that are there."""
    places = {one: find_place(folder, one) for one in ([split] if split else splits_in(folder))}
    for place in places.values():
        refuse_unfinished(place.home)
    splits = {
        one: open_place(place, one, hearing.notice, hearing.reading)
        for one, place in places.items()
    }
    return Source(
        homes={one: place.home for one, place in places.items()},
        forms={one: place.form for one, place in places.items()},
        splits=splits,
        class_names=_joined([records.class_names for records in splits.values()]),
        words=_read_words(next(iter(places.values())).home / WORDS),
    )


def _joined(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Shards of one split may lack a class, or its name; those of another may have it."""
    return tuple(
        _first_known(label, [those[label] for those in names if label < len(those)])
        for label in range(max(map(len, names)))
    )


def _first_known(label: int, names: Iterable[str]) -> str:
    unknown = f"class {label}"
    return next((name for name in names if name != unknown), unknown)


def _read_words(path: Path) -> dict[str, str]:
    """`n01530575 brambling, Fringilla montifringilla`, where such a file is there."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    lines = (line.strip().partition(" ") for line in text.splitlines())
    return {name: words for name, _, words in lines if name}
