"""A folder of tiny shards to index, with a record of all that is told meanwhile."""

from pathlib import Path

from index_samples import scan_of

from convoy.data.records.index import Index, ShardFormat
from convoy.data.records.indexing import ShardScan, open_index
from convoy.data.records.shards import ShardSet


class Desk:
    """Shards of one byte a record, which is its label, and a count of how often they are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scanned: list[str] = []
        self.notices: list[str] = []
        self.progress: list[tuple[int, int]] = []
        folder.mkdir()

    def write(self, number: int, labels: bytes) -> Path:
        path = self.folder / f"train-{number:05}-of-00003"
        path.write_bytes(labels)
        return path

    def scan(self, path: Path) -> ShardScan:
        self.scanned.append(path.name)
        return scan_of(*path.read_bytes(), size=1)

    def shards(self, kind: ShardFormat = "tfrecord") -> ShardSet:
        paths = sorted(self.folder.glob("train-*"))
        return ShardSet(self.folder, "train", kind, tuple(paths))

    def open(self, kind: ShardFormat = "tfrecord") -> Index:
        self.scanned.clear()
        self.notices.clear()
        return open_index(
            self.shards(kind),
            self.scan,
            self.notices.append,
            lambda done, total: self.progress.append((done, total)),
        )
