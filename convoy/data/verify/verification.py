"""Everything of a data set, read to the last byte: whatever its form, all that is wrong is listed.

Nothing is written, and no index is believed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from convoy.data.cifar import CIFAR10, CIFAR100, Layout, cifar10, cifar100
from convoy.data.hearing import Hearing
from convoy.data.records.manifest import refuse_unfinished
from convoy.data.records.opening import SPLITS, find_place, splits_in
from convoy.data.source import Split
from convoy.data.verify.folders import verify_folder
from convoy.data.verify.report import SplitReport
from convoy.data.verify.sets import verify_shards
from convoy.data.verify.team import Team


@dataclass(frozen=True)
class Scope:
    """What is to be read."""

    folder: Path
    split: Split | None = None  # None: all that are there
    workers: int = 1
    decoded: bool = True


def verify(scope: Scope, hearing: Hearing) -> Iterator[SplitReport]:
    """One report a split; ConfigError where no data is."""
    layout = _cifar(scope.folder)
    if layout is not None:
        for split in [scope.split] if scope.split else SPLITS:
            yield _verify_cifar(scope.folder, layout, split)
        return
    with Team(scope.workers) as team:
        for split in [scope.split] if scope.split else splits_in(scope.folder):
            yield _verify_split(scope, split, team, hearing)


def _verify_split(scope: Scope, split: Split, team: Team, hearing: Hearing) -> SplitReport:
    place = find_place(scope.folder, split)
    if place.form == "folder":
        report = verify_folder(place.home, split, team, hearing, decoded=scope.decoded)
    else:
        report = verify_shards(place.home, split, place.form, team, hearing, decoded=scope.decoded)
    with report.noting():
        refuse_unfinished(place.home)
    return report


def _cifar(folder: Path) -> Layout | None:
    """The layout whose files lie there, or in its own folder below."""
    for layout in (CIFAR10, CIFAR100):
        names = [name for names in layout.files.values() for name in names]
        if any(
            (home / name).is_file() for home in (folder, folder / layout.folder) for name in names
        ):
            return layout
    return None


def _verify_cifar(folder: Path, layout: Layout, split: Split) -> SplitReport:
    """Its own reader judges it: sizes, labels, copies."""
    report = SplitReport(split, layout.name)
    with report.noting():
        source = (cifar10 if layout is CIFAR10 else cifar100)(folder, split)
        report.files = len(layout.files[split])
        report.records = len(source)
        report.bytes = len(source) * layout.record_bytes
    return report
