"""Reading checkpoints: intact, damaged, moved and renamed."""

import os
import random
import shutil
from pathlib import Path

import pytest
from support.checkpoint_samples import fingerprint, forge, names, refusal, small

from convoy.checkpoint import reading
from convoy.checkpoint.reading import load, verify
from convoy.checkpoint.store import CheckpointStore
from convoy.errors import CheckpointError

FILES = [
    "MANIFEST.json",
    "averages.safetensors",
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return CheckpointStore(tmp_path / "checkpoints").save(small())


def undetected_flips(checkpoint: Path, trials: int) -> list[str]:
    """Flip one random bit at a time; return the flips whose error does not name the file."""
    rng = random.Random(5)
    originals = {name: (checkpoint / name).read_bytes() for name in FILES}
    accepted = []
    for _ in range(trials):
        name = rng.choices(FILES, [len(data) for data in originals.values()])[0]
        data = bytearray(originals[name])
        bit = rng.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        (checkpoint / name).write_bytes(data)
        try:
            load(checkpoint)
            accepted.append(f"{name} bit {bit}")
        except CheckpointError as error:
            if f": {name} " not in str(error):
                accepted.append(f"{name} bit {bit}: {error}")
        (checkpoint / name).write_bytes(originals[name])
    return accepted


def test_saved_contents_are_loaded_bit_exactly(checkpoint: Path):
    assert names(checkpoint) == FILES
    assert fingerprint(load(checkpoint)) == fingerprint(small())


def test_loaded_tensors_can_be_modified(checkpoint: Path):
    weight = load(checkpoint).model["fc.weight"]
    weight.add_(1)

    assert weight.equal(small(4).model["fc.weight"])


def test_500_flipped_bits_are_all_refused_with_the_file_named(checkpoint: Path):
    assert undetected_flips(checkpoint, 500) == []


@pytest.mark.evidence
def test_10_000_flipped_bits_are_all_refused_with_the_file_named(checkpoint: Path):
    assert undetected_flips(checkpoint, 10_000) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("read", [load, verify])
def test_a_truncated_extended_empty_or_missing_file_is_named(checkpoint: Path, name: str, read):
    full = (checkpoint / name).read_bytes()
    for damaged in (full[:-1], full + b"\n", full + b"\0", b"", None):
        (checkpoint / name).unlink()
        if damaged is not None:
            (checkpoint / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"update-3: {name} "):
            read(checkpoint)
        (checkpoint / name).write_bytes(full)

    read(checkpoint)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("read", [load, verify])
def test_a_file_of_another_update_is_refused(checkpoint: Path, name: str, read):
    other = CheckpointStore(checkpoint.parent).save(small(4))
    shutil.copy(other / name, checkpoint / name)

    with pytest.raises(CheckpointError, match=f"{name} "):
        read(checkpoint)


def test_a_folder_named_after_another_update_is_refused(checkpoint: Path):
    assert "MANIFEST.json is of update 3, but the folder name says 5" in refusal(
        checkpoint.rename(checkpoint.with_name("update-5"))
    )


def test_a_state_of_another_update_is_refused_even_with_the_right_hash(tmp_path: Path):
    forged = forge(tmp_path / "update-3", {"state.json": b'{"update": 4}'})

    assert "state of update 3" in refusal(forged)


def test_a_file_that_grows_after_it_is_opened_is_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    original_open = reading._open_file

    def open_and_append(folder, name, size=None):
        file = original_open(folder, name, size)
        if name == "model.safetensors":
            with (checkpoint / name).open("ab") as grown:
                grown.write(b"\0")
        return file

    monkeypatch.setattr(reading, "_open_file", open_and_append)

    assert "model.safetensors has" in refusal(checkpoint)


def test_a_file_is_hashed_before_any_of_it_is_parsed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    parsed = []
    monkeypatch.setattr(reading, "decode_tensors", parsed.append)
    (checkpoint / "optimizer.safetensors").write_bytes(b"damaged")
    refusal(checkpoint)

    assert parsed == []


@pytest.mark.parametrize("name", ["with spaces", "größe 模型 🚚", "best", "update-3"])
def test_a_checkpoint_loads_wherever_it_is_moved_or_copied(checkpoint: Path, name: str):
    copied = shutil.copytree(checkpoint, checkpoint.parent.parent / "another folder" / name)
    loaded = [fingerprint(load(copied))]
    moved = copied.rename(checkpoint.parent.parent / name)
    loaded.append(fingerprint(load(moved)))
    link = checkpoint.parent / "a link"
    link.symlink_to(moved)
    loaded.append(fingerprint(load(link)))

    assert loaded == [fingerprint(small())] * 3


def test_a_store_behind_a_link_and_a_relative_path_work(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    (checkpoint.parent.parent / "link").symlink_to(checkpoint.parent)
    monkeypatch.chdir(checkpoint.parent.parent)
    store = CheckpointStore(Path("link"))
    store.save(small(8))

    assert store.updates() == [3, 8]
    assert fingerprint(store.load_newest().contents) == fingerprint(small(8))


def test_optimizer_and_averages_may_be_absent_or_empty(tmp_path: Path):
    empty = (2).to_bytes(8, "little") + b"{}"
    absent = forge(tmp_path / "update-3", {})
    present = forge(
        tmp_path / "copy", {"optimizer.safetensors": empty, "averages.safetensors": empty}
    )

    assert load(absent).optimizer == load(present).optimizer == load(present).averages == {}


def test_the_error_for_a_path_that_is_not_a_folder_describes_a_checkpoint(tmp_path: Path):
    (tmp_path / "model.pt").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    reasons = [refusal(tmp_path / name) for name in ("model.pt", "pipe", "nothing")]

    assert all("a checkpoint is a folder update-<N> with MANIFEST.json" in text for text in reasons)


def test_a_folder_without_a_manifest_is_not_a_checkpoint(tmp_path: Path):
    (tmp_path / ".metadata").write_bytes(b"metadata of torch.distributed.checkpoint")

    assert "MANIFEST.json is missing" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["update-3.tmp-0123456789ab", "update-3.old-0123456789ab"])
def test_an_unfinished_checkpoint_is_not_loaded_by_its_path(checkpoint: Path, name: str):
    assert "incomplete" in refusal(checkpoint.rename(checkpoint.with_name(name)))


def test_a_symlink_loop_is_refused(tmp_path: Path):
    (tmp_path / "update-3").symlink_to(tmp_path / "update-3")

    assert "ELOOP" in refusal(tmp_path / "update-3")


def test_a_file_that_cannot_be_read_is_named_with_the_error(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(path, *rest, **options):
        if path == "model.safetensors":
            raise PermissionError(13, "Permission denied")
        return original_open(path, *rest, **options)

    original_open = os.open
    monkeypatch.setattr(os, "open", fail)

    assert "model.safetensors cannot be read: EACCES" in refusal(checkpoint)
