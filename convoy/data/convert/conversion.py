"""Images from any form into any other: order, bytes, labels, boxes and names stay what they are.

    SOURCE ─→ order of the records ─→ parts ─→ threads write them, each whole ─→ manifest, last

The same words go on where a conversion was interrupted, and end in the same bytes.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convoy.data.convert import beside
from convoy.data.convert.beside import write_manifest
from convoy.data.convert.budget import Budget
from convoy.data.convert.crew import Crew
from convoy.data.convert.file_names import FileNames, folder_names
from convoy.data.convert.journal import open_journal
from convoy.data.convert.parts import Part, by_class, class_parts, tar_parts, tfrecord_parts, usable
from convoy.data.convert.source import Source, open_source
from convoy.data.convert.wish import Wish
from convoy.data.convert.writing import sweep
from convoy.data.hearing import Hearing
from convoy.data.records.manifest import JOURNAL
from convoy.data.source import Ids, Split
from convoy.errors import ConfigError, DataError, StorageError


@dataclass(frozen=True)
class Outcome:
    """What was written."""

    records: Mapping[Split, int]
    parts: int
    bytes: int
    left_out: tuple[str, ...]  # bad records, in words


@dataclass(frozen=True)
class Plan:
    """All parts of the target, and of a folder the names of its files."""

    parts: tuple[Part, ...]
    names: beside.Named


def convert(wish: Wish, hearing: Hearing) -> Outcome:
    """All of it, or an error that leaves nothing half."""
    _refuse_overlap(wish)
    source = open_source(wish.source, wish.split, hearing)
    plan = _plan(wish, source, hearing)
    identity = _identity(wish, source, plan)
    budget = Budget(wish.most_bad)
    budget.leave_out_known(source)
    try:
        with open_journal(wish.target, identity) as journal:
            sweep(wish.target)
            crew = Crew(wish, source, plan.names, journal, budget)
            finished = crew.work(plan.parts, hearing.working)
            _write_beside(wish, source, plan, finished)
            write_manifest(wish, source, identity, finished)
            (wish.target / JOURNAL).unlink()
    except OSError as error:
        raise StorageError(
            f"{error.filename or wish.target}: {error.strerror}; what is whole is kept, and the "
            "same words go on from there"
        ) from error
    parts = [done for some in finished.values() for done in some]
    return Outcome(
        records={split: sum(one.records for one in some) for split, some in finished.items()},
        parts=len(parts),
        bytes=sum(done.measured.bytes for done in parts),
        left_out=tuple(text for split in source.splits for text in budget.left_out(split)),
    )


def _refuse_overlap(wish: Wish) -> None:
    source, target = wish.source.resolve(), wish.target.resolve()
    if target.is_relative_to(source):
        raise ConfigError(
            f"{wish.target}: lies inside {wish.source}, which is read; name a folder outside of it"
        )


def _plan(wish: Wish, source: Source, hearing: Hearing) -> Plan:
    orders = {split: _order(wish, source, split, hearing) for split in source.splits}
    if wish.form != "folder":
        cut = tfrecord_parts if wish.form == "tfrecord" else tar_parts
        parts = [one for split in orders for one in cut(split, orders[split], wish.sharding)]
        return Plan(tuple(parts), {})
    folders = folder_names(source.class_names, hearing.notice)
    names = FileNames(hearing.notice)
    parts = [
        one
        for split, records in source.splits.items()
        for one in class_parts(split, orders[split], records.labels, folders)
    ]
    chosen = {
        split: (order, names.of(split, source.splits[split], order))
        for split, order in orders.items()
    }
    return Plan(tuple(parts), chosen)


def _order(wish: Wish, source: Source, split: Split, hearing: Hearing) -> Ids:
    """Which records of a split are written, and in which order."""
    labels = source.splits[split].labels
    numbers = usable(labels, wish.shuffle)
    if len(numbers) == 0:
        raise DataError(f"{source.homes[split]}: the {split} split has no record that can be used")
    if wish.form != "folder":
        return numbers
    grouped = by_class(numbers, labels)
    if not np.array_equal(grouped, numbers):
        hearing.notice(
            f"class folders hold one class after the other, the {split} split here does not: only "
            "within each class its order stays"
        )
    return grouped


def _identity(wish: Wish, source: Source, plan: Plan) -> dict[str, Any]:
    """What must be the same for a conversion to go on."""
    digests = {split: hashlib.sha256() for split in source.splits}
    for part in plan.parts:
        digests[part.split].update(os.fsencode(part.name) + b"\0" + part.numbers.tobytes())
    return {
        "form": wish.form,
        "shuffle": wish.shuffle,
        "source": {"folder": str(wish.source.resolve()), "sha256": source.stamp()},
        "splits": {split: digest.hexdigest() for split, digest in digests.items()},
    }


def _write_beside(wish: Wish, source: Source, plan: Plan, finished: beside.Finished) -> None:
    beside.write_words(wish.target, source)
    if wish.form == "webdataset":
        beside.write_metadata(wish, source, finished)
    if wish.form == "folder":
        beside.write_boxes(wish.target, source, plan.names, finished)
        os.sync()
