"""Which checkpoint a path means: the newest of a run, of its second phase if there is one."""

from pathlib import Path

import pytest
from checkpoint_samples import small

from convoy.checkpoint.finding import found_at
from convoy.checkpoint.store import Store
from convoy.errors import CheckpointError


def saved(folder: Path, *updates: int) -> None:
    for update in updates:
        Store(folder).save(small(update), update)


def test_a_run_means_its_newest(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints", 3, 12)

    assert found_at(tmp_path).path == tmp_path / "checkpoints/update-12"
    assert found_at(tmp_path / "checkpoints").path == tmp_path / "checkpoints/update-12"
    assert found_at(tmp_path / "checkpoints/update-3").contents.update == 3


def test_a_run_that_was_fine_tuned_means_the_newest_of_that(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints", 12)
    saved(tmp_path / "fine-tune/checkpoints", 2, 4)

    assert found_at(tmp_path).path == tmp_path / "fine-tune/checkpoints/update-4"


def test_fine_tuning_without_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints", 12)
    (tmp_path / "fine-tune/checkpoints").mkdir(parents=True)

    assert found_at(tmp_path).contents.update == 12


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        found_at(tmp_path)
