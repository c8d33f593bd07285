"""What one shard holds: gathered record by record while it is read, then joined with the others."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from convoy.data.records.index import MOST_FAULTS, Numbers
from convoy.data.records.record import NO_BOXES, UNKNOWN, Boxes


@dataclass(frozen=True, eq=False)
class ShardScan:
    """One shard, in the arrays of an Index; boxes and faults are numbered within the shard."""

    offset: Numbers
    size: Numbers
    label: npt.NDArray[np.int32]
    crc: npt.NDArray[np.uint32]  # empty, or one for each record
    box_count: Numbers
    boxes: Boxes
    faults: tuple[tuple[int, str], ...]  # number, reason
    names: Mapping[int, str]  # label → class name, where the shard tells


def with_lost(found: ShardScan, records: int) -> ShardScan:
    """A damaged shard that held so many records: those that are gone keep their numbers.

    Each is a fault of its own, at the place of the last one that was found.
    """
    lost = records - len(found.label)
    if not found.faults or lost <= 0:
        return found
    last, reason = found.faults[-1]
    added = [(len(found.label) + place, f"lost: {reason}") for place in range(lost)]
    return replace(
        found,
        offset=np.concatenate([found.offset, np.full(lost, found.offset[last])]),
        size=np.concatenate([found.size, np.zeros(lost, np.int64)]),
        label=np.concatenate([found.label, np.full(lost, UNKNOWN, np.int32)]),
        crc=np.concatenate([found.crc, np.zeros(lost * bool(len(found.crc)), np.uint32)]),
        box_count=np.concatenate([found.box_count, np.zeros(lost, np.int64)]),
        faults=(*found.faults, *added)[:MOST_FAULTS],
    )


class Findings:
    """A shard under the eyes of its reader. Plain arrays: lists of numbers take four times more."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._offset = array("q")
        self._size = array("q")
        self._label = array("i")
        self._crc = array("I")
        self._box_count = array("q")
        self._boxes: list[Boxes] = [NO_BOXES]
        self._faults: list[tuple[int, str]] = []

    def good(
        self, offset: int, size: int, label: int, boxes: Boxes, crc: int | None = None
    ) -> None:
        """A record that can be used. Either all records of a shard have a CRC, or none."""
        self._place(offset, size, label, crc)
        self._box_count.append(len(boxes))
        if len(boxes):
            self._boxes.append(boxes)

    def bad(self, offset: int, size: int, reason: str, crc: int | None = None) -> None:
        """A record that cannot; what follows keeps its number."""
        if len(self._faults) < MOST_FAULTS:
            self._faults.append((len(self._label), reason))
        self._place(offset, size, UNKNOWN, crc)
        self._box_count.append(0)

    def _place(self, offset: int, size: int, label: int, crc: int | None) -> None:
        self._offset.append(offset)
        self._size.append(size)
        self._label.append(label)
        if crc is not None:
            self._crc.append(crc)

    def done(self) -> ShardScan:
        return ShardScan(
            offset=np.array(self._offset, np.int64),
            size=np.array(self._size, np.int64),
            label=np.array(self._label, np.int32),
            crc=np.array(self._crc, np.uint32),
            box_count=np.array(self._box_count, np.int64),
            boxes=np.concatenate(self._boxes),
            faults=tuple(self._faults),
            names=self.names,
        )
