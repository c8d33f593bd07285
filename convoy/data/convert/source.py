"""What is converted: the splits of a folder in any format, and everything known of each image."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convoy.data.images.header import ImageError, read_header
from convoy.data.progress import ProgressCallbacks
from convoy.data.records.manifest import refuse_unfinished
from convoy.data.records.open import (
    DataLocation,
    StoredRecords,
    find_data,
    open_location,
    splits_in,
)
from convoy.data.records.record import BadRecordError
from convoy.data.records.sample import Sample
from convoy.data.source import Split
from convoy.errors import DataError

CLASS_WORDS = "LOC_synset_mapping.txt"  # a line a class: its name, then what that means

_MOST_BYTES = 2**24


@dataclass(frozen=True)
class ConversionSource:
    """All splits that are converted together."""

    locations: Mapping[Split, DataLocation]
    splits: Mapping[Split, StoredRecords]
    class_names: tuple[str, ...]
    class_words: Mapping[str, str]

    @property
    def words_file(self) -> Path:
        return next(iter(self.locations.values())).folder / CLASS_WORDS

    def sample(self, split: Split, number: int) -> Sample:
        """One image with everything that belongs to it; its header is checked."""
        records = self.splits[split]
        image = records.read(number)
        encoded = bytes(image.encoded)
        try:
            header = read_header(encoded)
        except ImageError as error:
            raise BadRecordError(records.location(number), str(error)) from error
        label = int(records.labels[number])
        filename, text = records.words(number)
        return Sample(
            encoded=encoded,
            label=label,
            synset=self.class_names[label],
            filename=filename,
            width=header.width,
            height=header.height,
            text=text or self.class_words.get(self.class_names[label], ""),
            boxes=image.boxes,
        )

    def stamp(self) -> str:
        """Identifies the data as it is now."""
        parts = [(split, records.stamp()) for split, records in self.splits.items()]
        return hashlib.sha256(repr((parts, self.class_names)).encode()).hexdigest()


def open_conversion_source(
    folder: Path, split: Split | None, callbacks: ProgressCallbacks
) -> ConversionSource:
    """One split, or all that are there."""
    names = [split] if split else splits_in(folder)
    locations = {name: find_data(folder, name) for name in names}
    for location in locations.values():
        refuse_unfinished(location.folder)
    splits = {
        name: open_location(location, name, callbacks.notice, callbacks.reading)
        for name, location in locations.items()
    }
    return ConversionSource(
        locations=locations,
        splits=splits,
        class_names=_joined([records.class_names for records in splits.values()]),
        class_words=_read_words(locations[names[0]].folder / CLASS_WORDS),
    )


def _joined(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Shards of one split may lack a class, or its name; those of another may have it."""
    joined = []
    for label in range(max(map(len, names))):
        unknown = f"class {label}"
        known = [those[label] for those in names if label < len(those)]
        joined.append(next((name for name in known if name != unknown), unknown))
    return tuple(joined)


def _read_words(path: Path) -> dict[str, str]:
    """`n01530575 brambling, Fringilla montifringilla`, if there is such a file."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    lines = (line.strip().partition(" ") for line in text.splitlines())
    return {name: words for name, _, words in lines if name}
