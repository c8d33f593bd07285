"""Runs on CIFAR files, valid and invalid."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cifar_files import write_cifar10, write_cifar100
from support.run_convoy import TINY, convoy

WORDS = [word for word in TINY if not word.startswith(("--data=", "--image-size", "--samples"))]


@pytest.mark.parametrize(
    ("name", "write"), [("cifar10", write_cifar10), ("cifar100", write_cifar100)]
)
def test_cifar_trains_and_validates(
    tmp_path: Path, name: str, write: Callable[[Path, int], Path]
) -> None:
    write(tmp_path / "data", 100)
    words = ("--data", name, "--data-dir", tmp_path / "data", "--validation-mode=after")
    result = convoy("train", *WORDS, *words, "--output", tmp_path / "run")

    assert result.code == 0, result.err
    assert "validation: top-1" in result.out


def test_the_data_folder_can_be_set_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10(tmp_path / "data", 20)
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    result = convoy("train", *WORDS, "--data=cifar10", "--output", tmp_path / "run")

    assert result.code == 0, result.err
    assert "environment DATA_DIR" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_file_of_the_wrong_size_is_named_with_code_3(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path / "data", 20)
    with (folder / "data_batch_3.bin").open("ab") as file:
        file.write(b"x")
    result = convoy("train", *WORDS, "--data=cifar10", "--data-dir", tmp_path / "data")

    assert result.code == 3
    assert "data_batch_3.bin" in result.err and "3073" in result.err
    assert len(result.err.splitlines()) <= 2


def test_a_missing_folder_is_refused_with_code_2(tmp_path: Path) -> None:
    result = convoy("train", *WORDS, "--data=cifar10", "--data-dir", tmp_path / "nowhere")

    assert result.code == 2
    assert "nowhere" in result.err


def test_a_batch_larger_than_the_dataset_is_refused_with_the_numbers(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data", 1)
    result = convoy("train", *WORDS, "--data=cifar10", "--data-dir", tmp_path / "data")

    assert result.code == 2
    assert "16 samples" in result.err and "has 5" in result.err
