"""convoy configs: the table of named configurations, and a single configuration."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import convoy

from convoy.config import named_configs
from convoy.config.named_configs import read_settings, shipped_config_names
from convoy.config.schema import option_table

ROW_KEYS = {
    *("name", "model", "data", "replicas", "stages", "micro_batch_size", "devices"),
    *("gradient_accumulation", "global_batch_size", "updates_per_epoch", "problem"),
}


@pytest.fixture
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two configurations that replaces the shipped ones."""
    (tmp_path / "wide.yaml").write_text("replicas: 4\nshards: 2\ngradient_accumulation: 8\n")
    (tmp_path / "disk.yaml").write_text("data: cifar10\nmodel: resnet20\n")
    monkeypatch.setattr(
        named_configs, "shipped_configs", partial(named_configs.shipped_configs, tmp_path)
    )
    return tmp_path


def config_rows_json() -> dict[str, dict[str, Any]]:
    result = convoy("configs", "--json")
    assert (result.code, result.err) == (0, "")
    return {row["name"]: row for row in json.loads(result.out)}


@pytest.mark.usefixtures("config_folder")
def test_the_json_list_has_a_stable_structure() -> None:
    rows = config_rows_json()
    disk, wide = rows["disk"], rows["wide"]

    assert set(disk) == set(wide) == ROW_KEYS
    assert (disk["model"], disk["data"], disk["global_batch_size"]) == ("resnet20", "cifar10", 128)
    assert (disk["devices"], disk["updates_per_epoch"], disk["problem"]) == (1, 390, None)
    assert (wide["replicas"], wide["stages"], wide["devices"]) == (4, 2, 8)
    assert (wide["global_batch_size"], wide["updates_per_epoch"]) == (32 * 8 * 4, 7)


@pytest.mark.usefixtures("config_folder")
def test_the_table_has_a_line_for_each_configuration() -> None:
    result = convoy("configs")

    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "name  model     devices   batch  updates/epoch  problem",
        "wide  resnet14        8    1024              7",
        "disk  resnet20        1     128            390",
    ]


def test_the_list_is_sorted_by_model_devices_and_name(config_folder: Path) -> None:
    (config_folder / "alone.yaml").write_text("{}\n")
    (config_folder / "second.yaml").write_text("replicas: 8\n")
    (config_folder / "first.yaml").write_text("replicas: 8\n")
    (config_folder / "later.yaml").write_text("model: resnext50\ndata: imagenet\n")

    assert list(config_rows_json()) == ["alone", "first", "second", "wide", "disk", "later"]


REFUSED = """\
model: efficientnet-b4
data: imagenet
micro_batch_size: 5
gradient_accumulation: 38
replicas: 16
pipeline_schedule: grouped
pipeline_splits: [block2c, block4c, block6a]
"""


def test_a_configuration_whose_plan_is_refused_is_listed_with_its_values(
    config_folder: Path,
) -> None:
    (config_folder / "old.yaml").write_text(REFUSED)
    problem = (
        "--pipeline-schedule grouped with 4 stages needs --gradient-accumulation to be a "
        "multiple of 8, got 38; use 32 or 40"
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

    assert config_rows_json()["old"] == row
    assert f"3040            421  {problem}\n" in convoy("configs").out


def test_only_the_first_of_several_problems_is_listed(config_folder: Path) -> None:
    (config_folder / "wrong.yaml").write_text("pipeline_splits: [nowhere, neither]\n")

    assert config_rows_json()["wrong"]["problem"].startswith(
        "--pipeline-splits 'nowhere' is not a layer"
    )
    assert "neither" not in config_rows_json()["wrong"]["problem"]


def test_stages_that_share_a_device_count_as_one_device(config_folder: Path) -> None:
    (config_folder / "around.yaml").write_text(
        "shards: 4\nstages_per_device: 2\npipeline_schedule: looped\ngradient_accumulation: 2\n"
    )
    (config_folder / "folded.yaml").write_text(
        "shards: 1\npipeline_splits: [b1/0/relu]\npipeline_schedule: sequential\nreplicas: 3\n"
    )
    figures = {
        name: (row["stages"], row["devices"], row["problem"])
        for name, row in config_rows_json().items()
    }

    assert figures["around"] == (4, 2, None)
    assert figures["folded"] == (1, 3, None)


def test_an_update_larger_than_the_dataset_is_a_problem(config_folder: Path) -> None:
    (config_folder / "huge.yaml").write_text("replicas: 16384\n")
    huge = config_rows_json()["huge"]

    assert huge["updates_per_epoch"] == 0
    assert huge["problem"].startswith("one update needs 524288 samples")


def test_an_invalid_configuration_does_not_hide_the_others(config_folder: Path) -> None:
    (config_folder / "broken.yaml").write_text("replicas: 4\nshrads: 2\n")
    rows = config_rows_json()

    assert list(rows) == ["broken", "wide", "disk"]
    assert rows["broken"]["problem"].startswith("config broken, line 2: shrads is not an option")
    assert {key for key, value in rows["broken"].items() if value is not None} == {
        *("name", "problem"),
    }
    assert convoy("configs").out.splitlines()[1].startswith("broken  ")


def test_a_configuration_whose_plan_is_refused_is_shown(config_folder: Path) -> None:
    (config_folder / "old.yaml").write_text(REFUSED)
    result = convoy("configs", "old")

    assert (result.code, result.err) == (0, "")
    assert 'model: "efficientnet-b4"  # config old, line 1\n' in result.out
    assert "norm_num_groups: 4  # model efficientnet-b4\n" in result.out


@pytest.mark.usefixtures("config_folder")
def test_a_configuration_is_shown_completely_and_can_be_read_back(tmp_path: Path) -> None:
    result = convoy("configs", "wide")
    path = tmp_path / "shown"
    path.write_text(result.out)
    settings, problems = read_settings(path)

    assert problems == []
    assert list(settings) == list(option_table())
    assert "replicas: 4  # config wide, line 1\n" in result.out


@pytest.mark.usefixtures("config_folder")
def test_a_configuration_is_available_as_json() -> None:
    options = json.loads(convoy("configs", "wide", "--json").out)

    assert options["replicas"] == {"value": 4, "source": "config wide, line 1"}
    assert list(options) == list(option_table())


@pytest.mark.usefixtures("config_folder")
def test_an_unknown_name_is_refused_with_near_names() -> None:
    result = convoy("configs", "wite")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("convoy: --config 'wite' is unknown; did you mean wide")


def test_an_invalid_file_is_reported_with_its_line(config_folder: Path) -> None:
    (config_folder / "wide.yaml").write_text("replicas: 4\nshrads: 2\n")
    result = convoy("configs", "wide")

    assert result.code == 2
    assert result.err.startswith(
        "convoy: config wide, line 2: shrads is not an option; did you mean sha"
    )


def test_all_but_four_shipped_configurations_can_be_planned() -> None:
    """`test_configs_figures.py` lists the refused ones."""
    results = {name: convoy("plan", "--config", name) for name in shipped_config_names()}
    refused = [name for name, result in results.items() if (result.code, result.err) != (0, "")]

    assert len(refused) == 4
    assert all("needs --gradient-accumulation" in results[name].err for name in refused)


def test_every_shipped_configuration_starts_with_its_command_and_result() -> None:
    for name in shipped_config_names():
        head = named_configs.shipped_configs()[name].read_text()

        assert head.startswith("# "), name
        assert any(f"#   convoy {verb} " in head for verb in ("train", "plan", "validate")), name
        assert f" --config {name}" in head
        assert "\n# Result: " in head, name
