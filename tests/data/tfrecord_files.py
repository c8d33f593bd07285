"""Small TFRecord sets for tests: samples with made-up image bytes, right and wrong ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from convoy.data.records import tfrecord_format as frames
from convoy.data.records.record import Boxes, Sample
from convoy.data.records.tfrecord import TfRecords, open_tfrecords, write_sample
from convoy.data.records.tfrecord_format import byte_strings, floats, integers, write_example
from convoy.data.source import Split

BOXES: Boxes = np.array([[0.1, 0.2, 0.5, 0.75], [0, 0, 1, 1]], np.float32)


def sample(number: int) -> Sample:
    """The same for the same number; labels count through four classes."""
    image = b"\xff\xd8" + np.random.default_rng(number).bytes(50 + number) + b"\xff\xd9"
    label = number % 4
    return Sample(
        encoded=image,
        label=label,
        synset=f"n{label:08}",
        filename=f"n{label:08}_{number}.JPEG",
        width=8,
        height=6,
        text="a thing, an object",
        boxes=BOXES[: number % 3],
    )


def write_set(
    folder: Path, shards: int = 3, records: int = 5, split: Split = "train"
) -> list[Path]:
    """So many shards of so many records, numbered through."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{split}-{shard:05}-of-{shards:05}" for shard in range(shards)]
    for shard, path in enumerate(paths):
        numbers = range(shard * records, (shard + 1) * records)
        write_raw(path, [write_sample(sample(number)) for number in numbers])
    return paths


def write_raw(path: Path, records: Sequence[bytes]) -> None:
    """Records under right checksums, whatever they are."""
    path.write_bytes(b"".join(b"".join(frames.framed(record)) for record in records))


def example(**changes: bytes | None) -> bytes:
    """A right Example but for these fields, named without `image/`; None leaves one out."""
    fields = {
        "image/encoded": byte_strings(b"\xff\xd8\xff\xd9"),
        "image/class/label": integers(1),
        "image/class/synset": byte_strings(b"n00000001"),
        **{f"image/object/bbox/{side}": floats() for side in ("xmin", "ymin", "xmax", "ymax")},
    }
    names = {"encoded": "image/encoded", "label": "image/class/label"}
    given = {names.get(key, f"image/object/bbox/{key}"): value for key, value in changes.items()}
    merged = {**fields, **given}
    return write_example({key: value for key, value in merged.items() if value is not None})


def opened(folder: Path, split: Split = "train") -> TfRecords:
    """A set that gives no reason for a notice."""
    notices: list[str] = []
    records = open_tfrecords(folder, split, notices.append, lambda _, __: None)
    assert notices == []
    return records
