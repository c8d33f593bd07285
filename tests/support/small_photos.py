"""Small photos in class folders: each is different, some have bounding boxes."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import simplejpeg

from convoy.data.convert.conversion import convert
from convoy.data.convert.plan import ConversionRequest, Sharding
from convoy.data.progress import ProgressCallbacks
from convoy.data.records.folder import BOX_FILE_NAME
from convoy.data.records.open import find_split, open_location
from convoy.data.records.record import DataFormat
from convoy.data.source import Split
from support.run_convoy import convoy_process

CLASSES: Mapping[str, int] = {"n01": 5, "n02": 3, "n03": 4}


def jpeg(number: int, size: int = 24) -> bytes:
    """A random image that depends only on the number."""
    pixels = np.random.default_rng(number).integers(0, 256, (size, size + number % 5, 3), np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=80))


def write_photos(root: Path, classes: Mapping[str, int] = CLASSES, validation: int = 1) -> Path:
    """Write photos of each class, some for validation; two in three have boxes."""
    number, rows = 0, []
    for split, counts in (
        ("train", classes),
        ("validation", dict.fromkeys(classes, validation) if validation else {}),
    ):
        for name, count in counts.items():
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                file = f"{name}_{split}_{index}.JPEG"
                (root / split / name / file).write_bytes(jpeg(number))
                rows += [f"{file},0.1,0.2,0.{7 + box},0.9\n" for box in range(number % 3)]
                number += 1
    (root / BOX_FILE_NAME).write_text("".join(rows))
    return root


def converted(source: Path, target: Path, data_format: DataFormat, shard_records: int = 3) -> Path:
    sharding = Sharding(records=shard_records)
    convert(ConversionRequest(source, target, data_format, sharding=sharding), ProgressCallbacks())
    return target


def contents(folder: Path, split: Split) -> list[tuple[bytes, int, str, list[list[float]], str]]:
    """All records in order: image, label, class name, boxes, file name."""
    records = open_location(find_split(folder, split), split)
    images = [records.read(number) for number in range(len(records))]
    labels = records.labels.tolist()
    return [
        (
            bytes(image.encoded),
            label,
            records.class_names[label],
            image.boxes.tolist(),
            records.filename_and_text(number)[0],
        )
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
    ]


def tree(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder, except stored indexes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".index"
    }


def trained_weights(data: Path, run: Path, *options: str) -> str:
    """The digest and accuracy of a very short training run."""
    result = convoy_process(
        *("train", "--data=imagenet", "--data-dir", data, "--model=resnet18", "--seed=3"),
        *("--micro-batch-size=4", "--gradient-accumulation=2", "--updates=2", "--threads=1"),
        *("--use-bbox-info", "--output", run, "--progress=none", *options),
        scratch=run.parent,
    )
    assert result.code == 0, result.err
    summary = json.loads((run / "summary.json").read_text())
    return str(summary["weights_sha256"]) + str(summary["top1"])
