"""convoy configs: the table of named configurations, and one of them whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import convoy

from convoy.config import named
from convoy.config.named import read_settings, shipped_names
from convoy.config.schema import option_table

SHAPE = {
    *("name", "model", "data", "replicas", "stages", "micro_batch_size", "devices"),
    *("gradient_accumulation", "global_batch_size", "updates_per_epoch", "problem"),
}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two configurations in place of the shipped ones."""
    (tmp_path / "wide.yaml").write_text("replicas: 4\nshards: 2\ngradient_accumulation: 8\n")
    (tmp_path / "disk.yaml").write_text("data: cifar10\nmodel: resnet20\n")
    monkeypatch.setattr(named, "SHIPPED", tmp_path)
    return tmp_path


def listed() -> dict[str, dict[str, Any]]:
    said = convoy("configs", "--json")
    assert (said.code, said.err) == (0, "")
    return {row["name"]: row for row in json.loads(said.out)}


@pytest.mark.usefixtures("fleet")
def test_the_list_for_programs_has_its_stable_shape() -> None:
    rows = listed()
    disk, wide = rows["disk"], rows["wide"]

    assert set(disk) == set(wide) == SHAPE
    assert (disk["model"], disk["data"], disk["global_batch_size"]) == ("resnet20", "cifar10", 128)
    assert (disk["devices"], disk["updates_per_epoch"], disk["problem"]) == (1, 390, None)
    assert (wide["replicas"], wide["stages"], wide["devices"]) == (4, 2, 8)
    assert (wide["global_batch_size"], wide["updates_per_epoch"]) == (32 * 8 * 4, 7)


@pytest.mark.usefixtures("fleet")
def test_the_table_has_a_line_for_each() -> None:
    said = convoy("configs")

    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "name  model     devices   batch  updates/epoch  problem",
        "wide  resnet14        8    1024              7",
        "disk  resnet20        1     128            390",
    ]


def test_the_list_goes_by_model_then_devices_then_name(fleet: Path) -> None:
    (fleet / "alone.yaml").write_text("{}\n")
    (fleet / "zwei.yaml").write_text("replicas: 8\n")
    (fleet / "acht.yaml").write_text("replicas: 8\n")
    (fleet / "later.yaml").write_text("model: resnext50\ndata: imagenet\n")

    assert list(listed()) == ["alone", "acht", "wide", "zwei", "disk", "later"]


REFUSED = """\
model: efficientnet-b4
data: imagenet
micro_batch_size: 5
gradient_accumulation: 38
replicas: 16
pipeline_schedule: grouped
pipeline_splits: [block2c, block4c, block6a]
"""


def test_one_whose_plan_is_refused_is_listed_with_its_figures(fleet: Path) -> None:
    (fleet / "old.yaml").write_text(REFUSED)
    problem = (
        "Grouped with 4 stages needs --gradient-accumulation to be a multiple of 8 and at least 8, "
        "got 38; use 32 or 40"
    )
    row = {
        "name": "old",
        "model": "efficientnet-b4",
        "data": "imagenet",
        "replicas": 16,
        "stages": 4,
        "devices": 64,
        "micro_batch_size": 5,
        "gradient_accumulation": 38,
        "global_batch_size": 3040,
        "updates_per_epoch": 421,
        "problem": problem,
    }

    assert listed()["old"] == row
    assert f"3040            421  {problem}\n" in convoy("configs").out


def test_of_several_complaints_the_first_is_listed(fleet: Path) -> None:
    (fleet / "wrong.yaml").write_text("pipeline_splits: [nowhere, neither]\n")

    assert listed()["wrong"]["problem"].startswith("--pipeline-splits 'nowhere' is no layer")
    assert "neither" not in listed()["wrong"]["problem"]


def test_stages_that_share_a_device_are_one_in_the_list(fleet: Path) -> None:
    (fleet / "around.yaml").write_text(
        "shards: 4\nstages_per_device: 2\npipeline_schedule: looped\ngradient_accumulation: 2\n"
    )
    (fleet / "folded.yaml").write_text(
        "shards: 1\npipeline_splits: [b1/0/relu]\npipeline_schedule: sequential\nreplicas: 3\n"
    )
    figures = {
        name: (row["stages"], row["devices"], row["problem"]) for name, row in listed().items()
    }

    assert figures["around"] == (4, 2, None)
    assert figures["folded"] == (1, 3, None)


def test_more_samples_than_there_are_leave_no_update(fleet: Path) -> None:
    (fleet / "huge.yaml").write_text("replicas: 16384\n")
    huge = listed()["huge"]

    assert huge["updates_per_epoch"] == 0
    assert huge["problem"].startswith("one update needs 524288 samples")


def test_one_that_cannot_be_resolved_does_not_hide_the_others(fleet: Path) -> None:
    (fleet / "broken.yaml").write_text("replicas: 4\nshrads: 2\n")
    rows = listed()

    assert list(rows) == ["broken", "wide", "disk"]
    assert rows["broken"]["problem"].startswith("config broken, line 2: shrads is no option")
    assert {key for key, value in rows["broken"].items() if value is not None} == {
        *("name", "problem"),
    }
    assert convoy("configs").out.splitlines()[1].startswith("broken  ")


def test_one_with_a_network_that_cannot_be_built_is_shown_whole(fleet: Path) -> None:
    (fleet / "old.yaml").write_text(REFUSED)
    said = convoy("configs", "old")

    assert (said.code, said.err) == (0, "")
    assert 'model: "efficientnet-b4"  # config old, line 1\n' in said.out
    assert "norm_num_groups: 4  # model efficientnet-b4\n" in said.out


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


def test_every_shipped_one_can_be_planned_unless_its_figures_are_refused() -> None:
    """Those that are refused are named in `test_configs_figures.py`."""
    said = {name: convoy("plan", "--config", name) for name in shipped_names()}
    refused = [name for name, one in said.items() if (one.code, one.err) != (0, "")]

    assert len(refused) == 4
    assert all("needs --gradient-accumulation" in said[name].err for name in refused)


def test_every_shipped_one_opens_with_its_own_command() -> None:
    for name in shipped_names():
        head = named.shipped()[name].read_text()

        assert head.startswith("# "), name
        assert any(f"#   convoy {verb} " in head for verb in ("train", "plan", "validate")), name
        assert f" --config {name}" in head
        assert "\n# Expected: " in head, name
