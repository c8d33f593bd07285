"""Images in class folders: every file read and decoded, and every folder held to the manifest."""

from pathlib import Path

import numpy as np

from convoy.data.hearing import Hearing, Tally
from convoy.data.records.folder import ImageFolder, open_folder
from convoy.data.records.ledger import BadRecord
from convoy.data.records.manifest import NAME, Told, read_told
from convoy.data.records.record import BadRecordError
from convoy.data.source import Ids, Split
from convoy.data.verify.images import fault_of
from convoy.data.verify.report import SplitReport
from convoy.data.verify.shards import StoppedError
from convoy.data.verify.team import Team
from convoy.data.whole_files import measure

_CHUNK = 64  # files that a thread takes at once

Found = tuple[list[BadRecord], int]  # bad records, and bytes of all


def verify_folder(
    home: Path, split: Split, team: Team, hearing: Hearing, *, decoded: bool
) -> SplitReport:
    """One split."""
    report = SplitReport(split, "folder")
    with report.noting():
        images = open_folder(home, split)
        for remark in images.passed_over:
            hearing.notice(f"passed over: {remark}")
        tally = Tally(len(images), hearing.working)
        report.files = report.records = len(images)
        chunks = np.split(np.arange(len(images)), range(_CHUNK, len(images), _CHUNK))
        checks = team.each(lambda ids: _check(images, split, ids, team, tally, decoded), chunks)
        for bad, size in checks:
            report.bad += bad
            report.bytes += size
    with report.noting():
        told = read_told(home, split) or {}
        found = team.each(lambda name: _difference(home / name, told[name]), sorted(told))
        report.problems += [one for one in found if one is not None]
    return report


def _check(
    images: ImageFolder, split: Split, ids: Ids, team: Team, tally: Tally, decoded: bool
) -> Found:
    bad, size = [], 0
    for number in ids.tolist():
        if team.stopped():
            raise StoppedError
        try:
            encoded = images.read(number).encoded
            size += len(encoded)
            fault = fault_of(encoded, decoded=decoded)
            if fault is not None:
                raise BadRecordError(images.spot(number), fault)
        except BadRecordError as error:
            bad.append(BadRecord.of(error, split))
        tally.add(1)
    return bad, size


def _difference(path: Path, told: Told) -> str | None:
    found = measure(path)
    if found is None:
        return f"{path}: missing, {NAME} lists it with {told.records} images"
    if (found.bytes, found.sha256) != (told.bytes, told.sha256):
        return (
            f"{path}: not as it was written: {found.bytes} bytes, {NAME} lists {told.bytes} "
            f"in {told.records} images with another sha256"
        )
    return None
