"""A folder of tiny shards to index, which records notices and progress."""

from pathlib import Path

from convoy.data.progress import ProgressCallbacks
from convoy.data.records.index import Index, ShardFormat
from convoy.data.records.index_builder import ShardScan, open_index
from convoy.data.records.shards import ShardSet
from support.index_samples import make_scan


class ShardFolder:
    """Shards with one byte per record, its label; records which shards are scanned."""

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
        return make_scan(*path.read_bytes(), size=1)

    def shards(self, shard_format: ShardFormat = "tfrecord") -> ShardSet:
        paths = sorted(self.folder.glob("train-*"))
        return ShardSet(self.folder, "train", shard_format, tuple(paths))

    def open(self, shard_format: ShardFormat = "tfrecord") -> Index:
        self.scanned.clear()
        self.notices.clear()
        callbacks = ProgressCallbacks(
            self.notices.append, lambda done, total: self.progress.append((done, total))
        )
        return open_index(self.shards(shard_format), self.scan, callbacks)
