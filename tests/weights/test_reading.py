"""Weight files: wrappers that are removed, and files that are refused."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.errors import CheckpointError
from convoy.weights.reading import read_weights

PLAIN = {"fc.weight": torch.arange(6.0).view(2, 3), "fc.bias": torch.zeros(2)}


def save(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def error_message(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_weights(path)

    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin"])
def test_torch_files_are_read_with_each_suffix(tmp_path: Path, suffix: str) -> None:
    found = read_weights(save(tmp_path / f"a{suffix}", PLAIN))

    assert found.notes == []
    assert all(torch.equal(found.tensors[name], PLAIN[name]) for name in PLAIN)


def test_a_file_in_the_legacy_torch_format_is_read(tmp_path: Path) -> None:
    torch.save(PLAIN, tmp_path / "a.pth", _use_new_zipfile_serialization=False)

    assert torch.equal(read_weights(tmp_path / "a.pth").tensors["fc.weight"], PLAIN["fc.weight"])


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(PLAIN, tmp_path / "a.safetensors")

    assert torch.equal(
        read_weights(tmp_path / "a.safetensors").tensors["fc.weight"], PLAIN["fc.weight"]
    )


def test_a_convoy_run_and_its_checkpoint_are_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(CheckpointContents(model=dict(PLAIN), state={"update": 3}))

    for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "update-3"):
        found = read_weights(path)

        assert found.tensors.keys() == PLAIN.keys()
        assert found.source == str(tmp_path / "checkpoints" / "update-3")


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "state_dict_ema", "model_state_dict"])
def test_wrappers_are_removed_and_noted(tmp_path: Path, wrapper: str) -> None:
    wrapped = {"module._orig_mod." + name: item for name, item in PLAIN.items()}
    found = read_weights(save(tmp_path / "a.pth", {"epoch": 3, wrapper: wrapped, "lr": [0.1]}))

    assert found.tensors.keys() == PLAIN.keys()
    assert found.notes == [
        f"read from the key {wrapper!r}",
        "removed the prefix 'module.' from all names",
        "removed the prefix '_orig_mod.' from all names",
    ]


def test_averaged_weights_are_preferred(tmp_path: Path) -> None:
    both = {"state_dict": {"a": torch.zeros(1)}, "state_dict_ema": {"a": torch.ones(1)}}

    assert read_weights(save(tmp_path / "a.pth", both)).tensors["a"].item() == 1


def test_a_prefix_of_only_some_names_is_not_removed(tmp_path: Path) -> None:
    some = {"module.a": torch.zeros(1), "b": torch.zeros(1)}

    assert read_weights(save(tmp_path / "a.pth", some)).tensors.keys() == some.keys()


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_refused_and_does_not_run(tmp_path: Path, zipped: bool) -> None:
    marker = tmp_path / "ran"
    torch.save(
        {"fc.weight": Hostile(marker)}, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped
    )
    message = error_message(tmp_path / "a.pth")

    assert "refused: loading it would call " in message and "system" in message
    assert not marker.exists()


def test_a_bare_pickle_with_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    error_message(tmp_path / "a.bin")

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("length", [0, 7, 0.5, 0.95])
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str, length: float) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".pth":
        save(path, PLAIN)
    else:
        save_file(PLAIN, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(length if length >= 1 else length * len(data))])
    message = error_message(path)

    assert f"{path} is " in message


def test_a_header_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + b"{}")

    assert "its header claims 1,099,511,627,776" in error_message(path)


def test_an_archive_that_unpacks_beyond_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2**20))
    monkeypatch.setattr(os, "sysconf", lambda name: 2**10 + len(name))

    assert path.stat().st_size < 2**16
    assert "is too large: 1,048,576 bytes" in error_message(path)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1, 2], "but a list"),
        ({"epoch": 3}, "'epoch' is not a named tensor"),
        ({1: torch.zeros(1)}, "'1' is not a named tensor"),
        ({}, "it is empty"),
        ({"state_dict": {}}, "it is empty"),
        (torch.zeros(3), "but a Tensor"),
    ],
)
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, value: Any, reason: str) -> None:
    assert reason in error_message(save(tmp_path / "a.pth", value))


def test_a_dict_that_contains_itself_is_refused(tmp_path: Path) -> None:
    table: dict[str, Any] = {}
    table["model"] = table
    file = io.BytesIO()
    torch.save(table, file)
    (tmp_path / "a.pth").write_bytes(file.getvalue())

    assert "'model' is not a named tensor" in error_message(tmp_path / "a.pth")


def test_an_unsupported_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.pth")

    assert "does not exist" in error_message(tmp_path / "nothing.pth")
    assert ".safetensors, .pth, .pt, .bin" in error_message(tmp_path / "a.onnx")
    assert "no checkpoint in" in error_message(tmp_path / "empty")
    assert "not a regular file" in error_message(tmp_path / "pipe.pth")
