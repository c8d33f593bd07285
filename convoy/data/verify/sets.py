"""All shards of a split: each by itself, then whether they are the set they should be."""

from collections.abc import Mapping
from pathlib import Path

from convoy.data.hearing import Hearing, Tally
from convoy.data.records.index import Kind
from convoy.data.records.indexing import ShardSet, kept_checksums, unheard
from convoy.data.records.joining import Scanned, join
from convoy.data.records.manifest import Told, read_class_names, read_told, refuse_other_shards
from convoy.data.records.shards import find_shards, shards_there
from convoy.data.records.tar import check_tar_set
from convoy.data.records.tar_metadata import Metadata, read_metadata
from convoy.data.records.tar_shards import find_tar_shards, tar_shards_there
from convoy.data.source import Split
from convoy.data.verify.report import SplitReport
from convoy.data.verify.shards import Rules, check_shard
from convoy.data.verify.team import Team
from convoy.errors import ConvoyError


def verify_shards(
    home: Path, split: Split, kind: Kind, team: Team, hearing: Hearing, *, decoded: bool
) -> SplitReport:
    """One split. What is wrong with the set does not keep its shards from being read."""
    report = SplitReport(split, kind)
    paths = _paths(home, split, kind, report)
    told, metadata = _told(home, split, paths, report), _metadata(home, split, kind, report)
    named = metadata.class_names or _class_names(home, report)
    kept = kept_checksums(ShardSet(home, split, kind, paths)) if not report.problems else {}
    rules = Rules(kind, split, len(named) or None, decoded, team.stopped, kept)
    tally = Tally(sum(path.stat().st_size for path in paths if path.is_file()), hearing.reading)
    scans: list[Scanned] = []
    for shard in team.each(
        lambda path: check_shard(path, rules, told.get(path.name), tally), paths
    ):
        report.bad += shard.bad
        report.problems += shard.problems
        if shard.file is not None and shard.scan is not None:
            report.files += 1
            report.records += shard.file.records
            report.bytes += shard.file.bytes
            if kind == "webdataset":
                scans.append((shard.file, shard.scan))
    if kind == "webdataset" and not report.problems:
        with report.noting():
            check_tar_set(home, split, metadata, join(kind, scans, unheard))
    return report


def _paths(home: Path, split: Split, kind: Kind, report: SplitReport) -> tuple[Path, ...]:
    find, there = (
        (find_shards, shards_there) if kind == "tfrecord" else (find_tar_shards, tar_shards_there)
    )
    try:
        return find(home, split)
    except ConvoyError as error:
        report.problems.append(str(error))
        return there(home, split)


def _told(
    home: Path, split: Split, paths: tuple[Path, ...], report: SplitReport
) -> Mapping[str, Told]:
    told: Mapping[str, Told] | None = None
    with report.noting():
        told = read_told(home, split)
        if told is not None:
            refuse_other_shards(home, told, [path.name for path in paths])
    return told or {}


def _metadata(home: Path, split: Split, kind: Kind, report: SplitReport) -> Metadata:
    metadata = Metadata()
    with report.noting():
        metadata = read_metadata(home, split) if kind == "webdataset" else metadata
    return metadata


def _class_names(home: Path, report: SplitReport) -> tuple[str, ...]:
    names: tuple[str, ...] = ()
    with report.noting():
        names = read_class_names(home)
    return names
