"""Scans of shards → the index of their split."""

from collections.abc import Callable, Sequence

import numpy as np

from convoy.config.user_text import shown
from convoy.data.records.index import MOST_FAULTS, Fault, Index, IndexedFile, Kind
from convoy.data.records.record import NO_BOXES, UNKNOWN
from convoy.data.records.scan import ShardScan

Scanned = tuple[IndexedFile, ShardScan]


def join(kind: Kind, shards: Sequence[Scanned], notice: Callable[[str], None]) -> Index:
    """All shards, one after the other."""
    scans = [scan for _, scan in shards]
    label = np.concatenate([np.empty(0, np.int32), *(scan.label for scan in scans)])
    counts = [len(scan.label) for scan in scans]
    empty = np.empty(0, np.int64)
    return Index(
        kind=kind,
        files=tuple(file for file, _ in shards),
        class_names=_class_names(shards, int(label.max(initial=UNKNOWN)) + 1, notice),
        faults=_faults(shards),
        file=np.repeat(np.arange(len(shards), dtype=np.uint32), counts),
        offset=np.concatenate([empty, *(scan.offset for scan in scans)]),
        size=np.concatenate([empty, *(scan.size for scan in scans)]),
        label=label,
        crc=np.concatenate([np.empty(0, np.uint32), *(scan.crc for scan in scans)]),
        box_end=np.concatenate([empty, *(scan.box_count for scan in scans)]).cumsum(),
        boxes=np.concatenate([NO_BOXES, *(scan.boxes for scan in scans)]),
    )


def _class_names(
    shards: Sequence[Scanned], classes: int, notice: Callable[[str], None]
) -> tuple[str, ...]:
    """As the shards call them; the first name stays where they do not agree."""
    names: dict[int, tuple[str, str]] = {}
    for file, scan in shards:
        for label, name in scan.names.items():
            first, where = names.setdefault(label, (name, file.name))
            if name != first:
                notice(
                    f"class {label} is called {shown(first)} in {where} and {shown(name)} in "
                    f"{file.name}; the first is used"
                )
    return tuple(
        names[label][0] if label in names else f"class {label}" for label in range(classes)
    )


def _faults(shards: Sequence[Scanned]) -> tuple[Fault, ...]:
    faults, start = [], 0
    for file, scan in shards:
        faults += [
            Fault(start + number, file.name, int(scan.offset[number]), reason)
            for number, reason in scan.faults
        ]
        start += len(scan.label)
    return tuple(faults[:MOST_FAULTS])
