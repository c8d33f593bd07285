"""An average gives way to whoever waits for the end, and then leaves nothing behind."""

from pathlib import Path

import pytest
import torch

from convoy.assemble.averaging import AveragingStopped, average_checkpoints
from convoy.assemble.network import build_network, whole
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.config.schema import build_config
from convoy.errors import CheckpointError
from convoy.plan.network import plan_network

CONFIG = build_config(
    {
        "model": "resnet8",
        "image_size": 12,
        "samples": 64,
        "micro_batch_size": 8,
        "threads": 1,
        "dataloader_worker": 0,
        "weight_avg_strategy": "mean",
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    plan = plan_network(CONFIG)
    model = build_network(plan, [whole(plan)], 0, torch.device("cpu")).tensors()
    for update in (2, 4):
        Store(tmp_path).save(Contents(model=model, state={"update": update}), update)
    return tmp_path


def test_an_average_says_what_it_is_made_of(folder: Path) -> None:
    made = average_checkpoints(CONFIG, folder)

    assert (made.strategy, made.checkpoints, made.update) == ("mean", 2, 4)
    assert made.path == folder / "averaged" / "mean-2-recompute" / "update-4"


def test_an_urgent_end_stops_it_at_the_next_micro_batch(folder: Path) -> None:
    asked: list[int] = []

    def after_three() -> bool:
        asked.append(len(asked))
        return len(asked) == 3

    with pytest.raises(AveragingStopped):
        average_checkpoints(CONFIG, folder, after_three)

    assert len(asked) == 3
    assert not (folder / "averaged").exists()


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        average_checkpoints(CONFIG, tmp_path)
