"""Small TFRecord sets with random image bytes, valid and invalid."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from convoy.data.progress import ProgressCallbacks
from convoy.data.records import tfrecord_format
from convoy.data.records.record import Boxes, Sample
from convoy.data.records.tfrecord import TfRecords, open_tfrecords, write_sample
from convoy.data.records.tfrecord_format import bytes_list, float_list, int64_list, write_example
from convoy.data.source import Split

BOXES: Boxes = np.array([[0.1, 0.2, 0.5, 0.75], [0, 0, 1, 1]], np.float32)


def sample(number: int) -> Sample:
    """A sample that depends only on its number; labels cycle through four classes."""
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
    """Write shards of consecutively numbered samples."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{split}-{shard:05}-of-{shards:05}" for shard in range(shards)]
    for shard, path in enumerate(paths):
        numbers = range(shard * records, (shard + 1) * records)
        write_raw(path, [write_sample(sample(number)) for number in numbers])
    return paths


def write_raw(path: Path, records: Sequence[bytes]) -> None:
    """Write any records with correct checksums."""
    path.write_bytes(b"".join(b"".join(tfrecord_format.frame_record(record)) for record in records))


def example(**changes: bytes | None) -> bytes:
    """A valid Example except for these fields, named without `image/`; None omits a field."""
    fields = {
        "image/encoded": bytes_list(b"\xff\xd8\xff\xd9"),
        "image/class/label": int64_list(1),
        "image/class/synset": bytes_list(b"n00000001"),
        **{f"image/object/bbox/{side}": float_list() for side in ("xmin", "ymin", "xmax", "ymax")},
    }
    names = {"encoded": "image/encoded", "label": "image/class/label"}
    replaced = {names.get(key, f"image/object/bbox/{key}"): value for key, value in changes.items()}
    merged = {**fields, **replaced}
    return write_example({key: value for key, value in merged.items() if value is not None})


def open_quietly(folder: Path, split: Split = "train") -> TfRecords:
    """Open a set and check that it causes no notice."""
    notices: list[str] = []
    records = open_tfrecords(folder, split, ProgressCallbacks(notices.append))
    assert notices == []
    return records
