"""Malicious checkpoints: disguised pickles, links, devices, huge files."""

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from support.checkpoint_samples import entry_of, forge, ignore, refusal, small, write_manifest

from convoy.checkpoint import reading
from convoy.checkpoint.format import FileEntry
from convoy.checkpoint.reading import load
from convoy.checkpoint.store import CheckpointStore
from convoy.errors import CheckpointError, ExitCode

FILES = ["MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return CheckpointStore(tmp_path / "checkpoints").save(small())


class Payload:
    """Unpickling this writes a marker file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.write_text, (self.marker, "executed")


def disguised_pickles(payload: Payload) -> dict[str, bytes]:
    """The same pickle in each container that other programs load."""
    raw = pickle.dumps({"model": payload})
    found = {"raw": raw, "old": pickle.dumps({"model": payload}, protocol=0)}
    for name, zipped in (("torch", True), ("legacy", False)):
        buffer = io.BytesIO()
        torch.save({"model": payload}, buffer, _use_new_zipfile_serialization=zipped)
        found[name] = buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", raw)
    found["zip"] = buffer.getvalue()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member := tarfile.TarInfo("pickle"), io.BytesIO(b""))
        member.size = len(raw)
        archive.addfile(member, io.BytesIO(raw))
    found["tar"] = buffer.getvalue()
    return found


@pytest.mark.parametrize("container", ["raw", "old", "torch", "legacy", "zip", "tar"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_pickle_in_disguise_is_refused_and_never_executed(
    tmp_path: Path, container: str, name: str
):
    marker = tmp_path / "marker"
    evil = disguised_pickles(Payload(marker))[container]
    forged = forge(tmp_path / "update-3", {name: evil})
    swapped = CheckpointStore(tmp_path / "checkpoints").save(small())
    (swapped / name).write_bytes(evil)
    (tmp_path / "file.pt").write_bytes(evil)
    (forged_manifest := forge(tmp_path / "copy", {}) / "MANIFEST.json").write_bytes(evil)
    for path in (forged, swapped, tmp_path / "file.pt", forged_manifest.parent):
        with pytest.raises(CheckpointError) as caught:
            load(path)
        assert caught.value.code is ExitCode.CHECKPOINT

    assert not marker.exists()


def test_the_test_payload_executes_when_unpickled(tmp_path: Path):
    pickle.loads(disguised_pickles(Payload(tmp_path / "marker"))["raw"])

    assert (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "sub/../model.safetensors", "a\0b", "", ".", "evil.pkl"]
)
def test_a_manifest_that_names_another_file_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    forged = forge(tmp_path / "update-3", {})
    (tmp_path / "outside").write_bytes(b"secret")
    entry = entry_of(b"secret")
    write_manifest(forged, {"model.safetensors": entry, "state.json": entry, name: entry})
    opened, original_open = [], os.open

    def record_open(path, *rest, **options):
        opened.append(str(path))
        return original_open(path, *rest, **options)

    monkeypatch.setattr(os, "open", record_open)

    assert f"MANIFEST.json lists {name!r}" in refusal(forged)
    assert opened == [str(forged), "MANIFEST.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "device"])
def test_a_file_that_is_not_regular_is_refused_without_blocking(
    checkpoint: Path, name: str, kind: str
):
    inside, outside = checkpoint / name, checkpoint.parent.parent / "outside"
    inside.rename(outside)  # the link points to a valid file
    match kind:
        case "link":
            inside.symlink_to(outside)
        case "dangling":
            inside.symlink_to("nowhere")
        case "pipe":
            os.mkfifo(inside)
        case "folder":
            inside.mkdir()
        case "device":
            try:
                os.mknod(inside, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero, which is endless
            except PermissionError:
                pytest.skip("creating a device needs privileges that this process does not have")

    assert f"{name} is not a regular file" in refusal(checkpoint)


def test_a_link_created_after_the_first_check_is_not_followed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "_check_regular", ignore)
    (checkpoint / "state.json").rename(checkpoint.parent / "outside")
    (checkpoint / "state.json").symlink_to(checkpoint.parent / "outside")

    assert "state.json cannot be read: ELOOP" in refusal(checkpoint)


def test_files_larger_than_the_memory_are_refused_before_they_are_read(tmp_path: Path):
    forged = forge(tmp_path / "update-3", {})
    state = entry_of((forged / "state.json").read_bytes())
    write_manifest(forged, {"model.safetensors": FileEntry(2**50, "0" * 64), "state.json": state})

    assert "bytes of memory to load" in refusal(forged)


def test_a_huge_manifest_is_refused_without_reading_all_of_it(checkpoint: Path):
    os.truncate(checkpoint / "MANIFEST.json", 2**40)  # a sparse file of 1 TB

    assert "MANIFEST.json 1,048,577 bytes of JSON" in refusal(checkpoint)


def test_hostile_json_and_tensors_are_refused_even_with_the_right_hash(tmp_path: Path):
    deep = forge(tmp_path / "a" / "update-3", {"state.json": b"[" * 10**5})
    nan = forge(tmp_path / "b" / "update-3", {"state.json": b'{"update": NaN}'})
    huge = forge(tmp_path / "c" / "update-3", {"model.safetensors": b"\xff" * 64})

    assert "state.json JSON is nested" in refusal(deep)
    assert "state.json invalid JSON" in refusal(nan)
    assert "model.safetensors not a safetensors file" in refusal(huge)
