"""Small indexes, and large ones, for tests."""

import numpy as np

from convoy.data.records.index import Index, IndexedFile
from convoy.data.records.index_builder import ShardScan, join_scans
from convoy.data.records.record import NO_BOXES, Boxes

BOX: Boxes = np.array([[0.1, 0.2, 0.5, 0.75]], np.float32)


def make_scan(*labels: int | None, size: int = 100) -> ShardScan:
    """A shard of records of equal size; None is a bad record. Two in three records have boxes."""
    scan = ShardScan()
    for index, label in enumerate(labels):
        if label is None:
            scan.add_bad(index * size, size, f"record {index} is bad")
            continue
        boxes = np.repeat(BOX, index % 3, axis=0) if index % 3 else NO_BOXES
        scan.add(index * size, size, label, boxes)
        scan.names[label] = f"n{label:04}"
    return scan


def make_scanned_shard(
    name: str, scan: ShardScan, size: int = 100
) -> tuple[IndexedFile, ShardScan]:
    count = len(scan.label)
    return IndexedFile(name, count * size, 1_700_000_000_000_000_000, count), scan


def small_index() -> Index:
    """Two shards, seven records, one of them bad."""
    first = make_scanned_shard("train-00000-of-00002", make_scan(0, 1, None, 2))
    second = make_scanned_shard("train-00001-of-00002", make_scan(2, 0, 4))
    return join_scans("tfrecord", [first, second])


def large_index(records: int, shards: int) -> Index:
    """As many records as ImageNet has, with boxes for two in five."""
    counts = [len(shard) for shard in np.array_split(np.arange(records), shards)]
    position = np.concatenate([np.arange(count) for count in counts])
    box_end = np.cumsum(np.arange(records) % 5 < 2)
    return Index(
        shard_format="tfrecord",
        files=tuple(
            IndexedFile(f"train-{shard:05}-of-{shards:05}", count * 110_000, shard, count)
            for shard, count in enumerate(counts)
        ),
        class_names=tuple(f"n{label:08}" for label in range(1000)),
        faults=(),
        file=np.repeat(np.arange(shards, dtype=np.uint32), counts),
        offset=position * 110_000,
        size=np.full(records, 110_000, np.int64),
        label=(np.arange(records) % 1000).astype(np.int32),
        crc=np.empty(0, np.uint32),
        box_end=box_end,
        boxes=np.tile(BOX, (int(box_end[-1]), 1)),
    )
