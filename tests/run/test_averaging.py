"""Averaging the newest checkpoints, and interrupting it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from convoy.checkpoint import reading
from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.config.schema import build_config
from convoy.config.sections.outputs import AverageConfig
from convoy.errors import CheckpointError
from convoy.models.network import plan_network
from convoy.run.averaging import AveragingInterrupted, average_checkpoints
from convoy.run.network import build_network

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
    model = build_network(plan, 0, torch.device("cpu")).tensors()
    for update in (2, 4):
        CheckpointStore(tmp_path).save(CheckpointContents(model=model, state={"update": update}))
    return tmp_path


def test_an_average_reports_its_strategy_and_checkpoints(folder: Path) -> None:
    averaged = average_checkpoints(CONFIG, folder)

    assert (averaged.strategy, averaged.checkpoints, averaged.update) == ("mean", 2, 4)
    assert averaged.path == str(folder / "averaged" / "mean-2-recompute" / "update-4")


@pytest.mark.parametrize(("requested", "used"), [(-1, 5), (0, 5), (1, 1), (3, 3), (9, 5)])
@pytest.mark.parametrize("strategy", ["mean", "exponential"])
def test_the_requested_number_of_newest_checkpoints_is_averaged(
    tmp_path: Path, strategy: str, requested: int, used: int
) -> None:
    values = [1.0, 8.0, -3.0, 0.5, 6.0]
    for update, value in enumerate(values, start=1):
        model = {"w": torch.full((3,), value)}
        CheckpointStore(tmp_path).save(CheckpointContents(model=model, state={"update": update}))
    options = AverageConfig(
        weight_avg_strategy=strategy,
        weight_avg_n=requested,
        weight_avg_exp_decay=0.75,
        norm_statistics="average",
    )
    averaged = average_checkpoints(replace(CONFIG, average=options), tmp_path)
    expected = values[-used]
    for value in values[len(values) - used + 1 :]:
        expected = 0.75 * expected + 0.25 * value
    if strategy == "mean":
        expected = sum(values[-used:]) / used

    assert averaged.checkpoints == used
    assert reading.load(Path(averaged.path)).model["w"].tolist() == pytest.approx(
        [expected] * 3, rel=1e-6
    )


def test_an_urgent_stop_interrupts_averaging_at_the_next_micro_batch(folder: Path) -> None:
    calls: list[int] = []

    def stop_at_third_call() -> bool:
        calls.append(len(calls))
        return len(calls) == 3

    with pytest.raises(AveragingInterrupted):
        average_checkpoints(CONFIG, folder, stop_at_third_call)

    assert len(calls) == 3
    assert not (folder / "averaged").exists()


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        average_checkpoints(CONFIG, tmp_path)
