"""convoy validate: a network whose answers are no numbers has not been measured."""

from dataclasses import replace
from pathlib import Path

from running import TINY, convoy

from convoy.checkpoint import reading
from convoy.checkpoint.store import Store


def test_a_loss_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    assert convoy("train", *TINY, "--output", tmp_path / "run").code == 0
    sound = reading.load(tmp_path / "run/checkpoints/update-6")
    broken = {name: -one if "running_var" in name else one for name, one in sound.model.items()}
    Store(tmp_path / "broken").save(replace(sound, model=broken), 6)
    path = tmp_path / "broken/update-6"
    said = convoy("validate", path, *TINY)

    assert said.code == 5
    assert said.err == f"convoy: the loss of {path} is nan: its answers are no numbers\n"
