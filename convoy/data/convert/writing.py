"""One part of the target, written whole or not at all, and what tells it from a damaged one.

A shard is synced before it gets its name. The files of a class folder are not, one by one: a
conversion that goes on checks their contents, and the manifest is only written behind a sync.
"""

import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from convoy.data.convert.parts import Part
from convoy.data.records import tar_writing, tfrecord
from convoy.data.records.record import Form
from convoy.data.records.sample import Sample

_DRAFTS = ".*.tmp-*"


def write_part(target: Path, form: Form, part: Part, samples: Iterable[Sample]) -> int:
    """Write the samples and count them."""
    path = target / part.name
    if form == "tfrecord":
        return tfrecord.write_shard(path, samples)
    if form == "webdataset":
        return tar_writing.write_shard(path, samples, part.first)
    return _write_folder(path, samples)


def _write_folder(path: Path, samples: Iterable[Sample]) -> int:
    """One file a sample, under the name it has."""
    draft = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    count = 0
    try:
        draft.mkdir(parents=True)
        for sample in samples:
            (draft / sample.filename).write_bytes(sample.encoded)
            count += 1
        if path.exists():
            shutil.rmtree(path)  # an older one that was not right
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return count


def sweep(target: Path) -> None:
    """Remove what a killed conversion was writing."""
    for draft in [*target.glob(_DRAFTS), *target.glob(f"*/{_DRAFTS}")]:
        if draft.is_dir():
            shutil.rmtree(draft)
        else:
            draft.unlink()
