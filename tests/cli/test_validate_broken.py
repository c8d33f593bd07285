"""convoy validate: outputs that are not finite are an error."""

from dataclasses import replace
from pathlib import Path

from support.run_convoy import TINY, convoy

from convoy.checkpoint import reading
from convoy.checkpoint.store import CheckpointStore


def test_a_loss_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    assert convoy("train", *TINY, "--output", tmp_path / "run").code == 0
    valid = reading.load(tmp_path / "run/checkpoints/update-6")
    broken = {
        name: -tensor if "running_var" in name else tensor for name, tensor in valid.model.items()
    }
    CheckpointStore(tmp_path / "broken").save(replace(valid, model=broken))
    path = tmp_path / "broken/update-6"
    result = convoy("validate", path, *TINY)

    assert result.code == 5
    assert str(path) in result.err and "not finite" in result.err
    assert result.err.count("\n") == 1
