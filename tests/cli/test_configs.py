"""convoy configs: the table of named configurations, and one of them whole."""

import json
from pathlib import Path

import pytest
from running import convoy

from convoy.config import named
from convoy.config.named import read_settings, shipped_names
from convoy.config.schema import option_table

SHAPE = {
    *("name", "model", "replicas", "stages", "micro_batch_size"),
    *("gradient_accumulation", "global_batch_size"),
}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two configurations in place of the shipped ones."""
    (tmp_path / "wide.yaml").write_text("replicas: 4\nshards: 2\ngradient_accumulation: 8\n")
    (tmp_path / "disk.yaml").write_text("data: cifar10\nmodel: resnet20\n")
    monkeypatch.setattr(named, "SHIPPED", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("fleet")
def test_the_list_for_programs_has_its_stable_shape() -> None:
    disk, wide = json.loads(convoy("configs", "--json").out)

    assert set(disk) >= SHAPE and set(wide) >= SHAPE
    assert (disk["name"], disk["model"], disk["global_batch_size"]) == ("disk", "resnet20", 128)
    assert (wide["replicas"], wide["stages"], wide["global_batch_size"]) == (4, 2, 32 * 8 * 4)


@pytest.mark.usefixtures("fleet")
def test_the_table_has_a_line_for_each() -> None:
    said = convoy("configs")

    assert (said.code, said.err) == (0, "")
    assert [line.split()[0] for line in said.out.splitlines()] == ["name", "disk", "wide"]


@pytest.mark.usefixtures("fleet")
def test_one_is_shown_whole_and_can_be_read_back(tmp_path: Path) -> None:
    said = convoy("configs", "wide")
    written = tmp_path / "shown"
    written.write_text(said.out)
    settings, problems = read_settings(written)

    assert problems == []
    assert list(settings) == list(option_table())
    assert "replicas: 4  # config wide, line 1\n" in said.out


@pytest.mark.usefixtures("fleet")
def test_one_can_be_had_as_json() -> None:
    options = json.loads(convoy("configs", "wide", "--json").out)

    assert options["replicas"] == {"value": 4, "source": "config wide, line 1"}
    assert list(options) == list(option_table())


@pytest.mark.usefixtures("fleet")
def test_an_unknown_one_is_refused_with_near_names() -> None:
    said = convoy("configs", "wite")

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("convoy: --config 'wite' is unknown; did you mean wide")


def test_a_faulty_one_is_told_with_its_line(fleet: Path) -> None:
    (fleet / "wide.yaml").write_text("replicas: 4\nshrads: 2\n")
    said = convoy("configs", "wide")

    assert said.code == 2
    assert said.err.startswith("convoy: config wide, line 2: shrads is no option; did you mean sha")


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_one_can_be_planned(name: str) -> None:
    said = convoy("plan", "--config", name, "--data-dir=DATA")

    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_one_opens_with_its_own_command(name: str) -> None:
    head = (named.SHIPPED / f"{name}.yaml").read_text()

    assert head.startswith("# ")
    assert f"--config {name}" in head.splitlines()[1]
