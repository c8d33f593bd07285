"""Encoded images kept in memory, as many as a limit allows: the first ones that are read stay."""

from threading import Lock

from convoy.data.records.record import Record, Records, Spot
from convoy.data.source import Labels


class CachedRecords:
    """The same records; each that was kept is read from disk once."""

    def __init__(self, records: Records, most_bytes: float, most_records: int) -> None:
        self._records = records
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._kept: dict[int, Record] = {}
        self._lock = Lock()
        self.kept_bytes = 0

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._records.class_names

    @property
    def labels(self) -> Labels:
        return self._records.labels

    def __len__(self) -> int:
        return len(self._records)

    def spot(self, number: int) -> Spot:
        return self._records.spot(number)

    def read(self, number: int) -> Record:
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        record = self._records.read(number)
        with self._lock:
            size = len(record.encoded)
            if self.kept_bytes + size > self._most_bytes or len(self._kept) >= self._most_records:
                return record
            if number not in self._kept:
                # A copy: a view of a mapped file would keep nothing but the mapping.
                self._kept[number] = Record(bytes(record.encoded), record.boxes)
                self.kept_bytes += size
        return self._kept[number]
