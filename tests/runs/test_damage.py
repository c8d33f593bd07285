"""Runs with damaged checkpoints, full disks and foreign files."""

import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.run_convoy import TINY, convoy


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    words = ("--ckpts-per-epoch", "2", "--stop-after", "9")
    assert convoy("train", *TINY, *words, "--output", run).code == 75
    return run


@pytest.fixture
def run(tmp_path: Path, finished: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    run: Path, finished: Path
) -> None:
    damage(run / "checkpoints" / "update-9" / "model.safetensors")
    result = convoy("resume", run)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    reference = shutil.copytree(finished, run.parent / "reference")
    convoy("resume", reference)

    assert result.code == 0
    assert "update-9" in result.out and "model.safetensors" in result.out
    assert any(event.get("kind") == "damaged_checkpoint" for event in events)
    assert _digest(run) == _digest(reference)


def _digest(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["weights_sha256"]


def test_a_damaged_checkpoint_that_was_requested_is_refused(run: Path) -> None:
    damage(run / "checkpoints" / "update-9" / "optimizer.safetensors")
    result = convoy("resume", run, "--checkpoint", run / "checkpoints" / "update-9")

    assert result.code == 4
    assert "optimizer.safetensors" in result.err


def test_a_run_without_a_valid_checkpoint_never_starts_from_scratch(run: Path) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        damage(checkpoint / "model.safetensors")
    result = convoy("resume", run)

    assert result.code == 4
    assert result.err.count("model.safetensors") == 3


def test_a_checkpoint_outside_the_run_can_be_resumed(run: Path, finished: Path) -> None:
    moved = shutil.copytree(run / "checkpoints" / "update-9", run.parent / "a folder für später")
    link = run.parent / "link"
    link.symlink_to(moved)
    reference = shutil.copytree(finished, run.parent / "reference")
    convoy("resume", reference)

    assert convoy("resume", run, "--checkpoint", link).code == 0
    assert _digest(run) == _digest(reference)


class _Payload:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, created: Path) -> None:
        self.created = created

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.created}'",)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "MANIFEST.json"])
def test_a_pickle_with_the_name_of_a_checkpoint_file_is_never_loaded(run: Path, name: str) -> None:
    created = run.parent / "created"
    target = run / "checkpoints" / "update-9"
    (target / name).write_bytes(pickle.dumps(_Payload(created)))
    result = convoy("resume", run, "--checkpoint", target)

    assert result.code == 4
    assert name in result.err
    assert not created.exists()


def test_a_pickle_instead_of_a_folder_is_never_loaded(run: Path) -> None:
    created = run.parent / "created"
    file = run.parent / "checkpoint.pt"
    file.write_bytes(pickle.dumps(_Payload(created)))
    for verb in (("resume", run, "--checkpoint", file), ("validate", file)):
        assert convoy(*verb).code == 4

    assert not created.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    output = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1600k", "tmpfs", str(folder)], capture_output=True
    )
    if output.returncode:
        pytest.skip("tmpfs cannot be mounted on this machine")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(small_disk: Path) -> None:
    run = small_disk / "run"  # space for one or two checkpoints of 0.6 MB
    result = convoy("train", *TINY, "--ckpts-per-epoch", "6", "--output", run)
    assert result.code == 6
    assert "ENOSPC" in result.err or "No space" in result.err or "free" in result.err

    (checkpoint, *_) = sorted((run / "checkpoints").glob("update-?"))
    assert convoy("validate", checkpoint).code == 0
    assert not list((run / "checkpoints").glob("*.tmp-*"))


def test_a_full_disk_is_reported_and_training_continues_when_enabled(small_disk: Path) -> None:
    run = small_disk / "run"
    words = ("--ckpts-per-epoch", "6", "--on-save-error", "continue")
    result = convoy("train", *TINY, *words, "--output", run)

    assert result.code == 6  # training continued, but the final weights are lost
    assert "training continues" in result.out
    assert "final weights" in result.err
    assert "update 12" in result.err


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    result = convoy("train", *TINY, "--output", tmp_path / "file" / "run")

    assert result.code == 6
    assert result.out == ""
