"""Initial weights: found, checked against the network, and reported."""

from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.checkpoint.format import CheckpointContents
from convoy.checkpoint.store import CheckpointStore
from convoy.config.schema import build_config
from convoy.errors import CheckpointError, ConfigError
from convoy.planning.plan import RunPlan, plan_run
from convoy.run.network import build_network
from convoy.run.starting_point import initial_weights


def plan_of(path: Path | None, **values: Any) -> RunPlan:
    options = {
        "model": "resnet8",
        "image_size": 12,
        "init_path": None if path is None else str(path),
    }
    return plan_run(build_config(options | values))


def save(folder: Path, *updates: int) -> None:
    """Save checkpoints whose weights are all equal to their update."""
    plan = plan_of(None).network
    template = build_network(plan, 0, torch.device("cpu")).tensors()
    for update in updates:
        model = {name: torch.full_like(tensor, update) for name, tensor in template.items()}
        CheckpointStore(folder).save(CheckpointContents(model=model, state={"update": update}))


def initial_values(path: Path) -> set[float]:
    weights = initial_weights(plan_of(path)).weights
    assert weights is not None
    return {float(value) for tensor in weights.values() for value in tensor.unique()}


def test_without_init_path_no_weights_are_loaded() -> None:
    assert initial_weights(plan_of(None)).weights is None
    assert initial_weights(plan_of(None)).notices == []


def test_a_run_path_selects_its_newest_checkpoint_and_a_checkpoint_path_itself(
    tmp_path: Path,
) -> None:
    save(tmp_path / "checkpoints", 4, 12)
    save(tmp_path / "checkpoints" / "averaged" / "mean", 7)

    assert initial_values(tmp_path) == initial_values(tmp_path / "checkpoints") == {12}
    assert initial_values(tmp_path / "checkpoints" / "update-4") == {4}
    assert initial_values(tmp_path / "checkpoints" / "averaged" / "mean") == {7}


def test_the_checkpoint_is_reported_with_its_update_and_digest(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 12)
    (notice,) = initial_weights(plan_of(tmp_path)).notices

    assert (notice.kind, notice.update) == ("init", 0)
    assert f"{tmp_path / 'checkpoints' / 'update-12'}, update 12, sha256 " in notice.text


def test_a_damaged_checkpoint_is_skipped_and_reported(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 4, 12)
    (tmp_path / "checkpoints" / "update-12" / "model.safetensors").write_bytes(b"no")
    damaged, found = initial_weights(plan_of(tmp_path)).notices

    assert damaged.kind == "damaged_checkpoint" and "update-12" in damaged.text
    assert "update 4" in found.text


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model": "resnet14"}, r"\d+ missing \(layer1\.1"),
        ({"norm_type": "group", "norm_num_groups": 8}, r"\d+ unexpected \(.*running_"),
        ({"data": "generated", "num_classes": 7}, r"fc\.bias 10 float32, expected 7 float32"),
    ],
)
def test_the_weights_of_another_network_are_refused_in_one_line(
    tmp_path: Path, values: dict[str, Any], reason: str
) -> None:
    save(tmp_path / "checkpoints", 12)

    with pytest.raises(CheckpointError, match=rf"^--init-path {tmp_path}: .*{reason}") as error:
        initial_weights(plan_of(tmp_path, **values))

    assert "\n" not in str(error.value)


def test_a_path_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(ConfigError, match=r"nothing does not exist$"):
        initial_weights(plan_of(tmp_path / "nothing"))
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        initial_weights(plan_of(tmp_path))
    with pytest.raises(CheckpointError, match="is not a folder"):
        initial_weights(plan_of(tmp_path / "file"))
