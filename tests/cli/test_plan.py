"""convoy plan: the text, the stable JSON object, and the source of each value."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import convoy

from convoy.config.named_configs import SHIPPED_DIR, shipped_configs
from convoy.config.schema import option_table


def plan(*words: str) -> dict[str, Any]:
    result = convoy("plan", "--json", *words)
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def explain_lines(*words: str | Path) -> dict[str, list[str]]:
    """Value and source of each option as `--explain` prints them."""
    result = convoy("plan", "--explain", *words)
    assert (result.code, result.err) == (0, "")
    lines = [line for line in result.out.splitlines() if line.startswith("--")]
    return {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}


def test_the_default_plan_is_printed() -> None:
    result = convoy("plan")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("network        resnet14, ")
    assert all(
        word in result.out for word in ("shapes", "size 32", "cosine", "1 replica × 1 stage")
    )


def test_the_json_plan_has_a_stable_structure() -> None:
    plan_json = plan()

    assert {
        *("batch", "topology", "stages", "schedule", "memory", "learning_rate", "updates"),
        *("options", "without_effect", "unavailable", "layout"),
    } <= set(plan_json)
    assert plan_json["batch"]["samples_per_update"] == 32
    assert plan_json["updates"]["per_epoch"] * 3 == plan_json["updates"]["total"]
    assert [stage["stage"] for stage in plan_json["stages"]] == [0]
    assert plan_json["topology"]["processes"] == 1


def test_every_option_of_the_json_plan_has_value_and_source() -> None:
    options = plan("--lr", "0.3")["options"]

    assert list(options) == list(option_table())
    assert all(set(option) == {"value", "source"} for option in options.values())
    assert options["lr"] == {"value": 0.3, "source": "command line"}
    assert options["pipeline_splits"] == {"value": [], "source": "default"}


def test_explain_shows_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA_DIR", "/data")
    Path("mine.yaml").write_text("# A comment.\nlr: 0.2\nmomentum: 0.8\ndata: cifar10\n")
    rows = explain_lines("--config-path", "mine.yaml", "--lr=0.123456789", "--updates", "7")

    assert rows["--lr"] == ["0.123456789", "command line"]
    assert rows["--momentum"] == ["0.8", "mine.yaml, line 3"]
    assert rows["--data-dir"] == ["/data", "environment DATA_DIR"]
    assert rows["--warmup-epoch"] == ["1", "data cifar10"]
    assert rows["--norm-num-groups"] == ["16", "model resnet14"]
    assert rows["--seed"] == ["0", "default"]
    assert rows["--epochs"] == ["–", "command line"]
    assert set(rows) == {row.shown_flag for row in option_table().values()}


def test_a_configuration_file_overrides_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", "/data")
    path = tmp_path / "mine.yaml"
    path.write_text("data: cifar10\ndata_dir: /elsewhere\n")

    assert explain_lines("--config-path", path)["--data-dir"][0] == "/elsewhere"


def test_an_entry_of_a_file_is_selected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "configs.yaml"
    path.write_text("base: &base {lr: 0.5, epoch: 2}\nfast:\n  <<: *base\n  epoch: 1\n")
    options = plan("--config-path", str(path), "--config", "fast")["options"]

    assert options["lr"]["value"] == 0.5
    assert options["epoch"] == {"value": 1.0, "source": f"{path}, line 4"}


def test_the_option_updates_replaces_the_default_epochs() -> None:
    plan_json = plan("--updates", "7")

    assert plan_json["updates"]["total"] == 7
    assert plan_json["options"]["epoch"]["value"] is None


def test_abbreviated_options_and_lists_are_parsed() -> None:
    words = ("--pipeline-split", "layer2,layer3", "--gradient-a", "4", "--pipeline-sch=sequential")
    plan_json = plan(*words)

    assert [stage["first"].split("/")[0] for stage in plan_json["stages"]] == [
        *("conv1", "layer2", "layer3"),
    ]
    assert plan_json["batch"]["gradient_accumulation"] == 4
    assert plan_json["schedule"]["name"] == "sequential"


def test_options_without_effect_are_shown_after_the_plan() -> None:
    words = ("--lr-decay", "0.3", "--num-workers=0", "--prefetch-depth=2", "--no-augment")
    result = convoy("plan", *words)

    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-3:] == [
        "",
        "no effect      --prefetch-depth with --num-workers 0",
        "               --lr-decay with --lr-schedule cosine",
    ]


def test_options_without_effect_are_in_the_json(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("lr_decay: 0.5\nreduction: fast\n")  # a default value is not reported
    plan_json = plan("--config-path", str(path), "--validation-frequency", "1")

    assert plan_json["without_effect"] == [
        {"option": "reduction", "reason": "--reduction has no effect with one replica"},
        {
            "option": "validation_frequency",
            "reason": "--validation-frequency has no effect with --validation-mode after",
        },
    ]


@pytest.mark.parametrize("words", [(), ("--reduction", "fast", "--replicas", "2")])
def test_options_with_an_effect_are_not_reported(words: tuple[str, ...]) -> None:
    assert plan(*words)["without_effect"] == []
    assert "no effect" not in convoy("plan", *words).out


CONVOY_CONFIGS = [name for name, path in shipped_configs().items() if path.parent == SHIPPED_DIR]


@pytest.mark.parametrize("name", CONVOY_CONFIGS)
def test_no_shipped_configuration_has_options_without_effect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", "DATA")

    assert plan("--config", name)["without_effect"] == []


def test_unavailable_values_are_reported_as_text_and_json() -> None:
    words = ("--model=efficientnet-b4", "--profile", "--wandb")
    result, plan_json = convoy("plan", *words), plan(*words)

    assert result.out.splitlines()[-2:] == [
        "not available  --profile true is not available in this version; use --no-profile",
        "               --wandb true is not available in this version; use --no-wandb",
    ]
    assert [
        (option["option"], option["value"], option["source"]) for option in plan_json["unavailable"]
    ] == [
        ("profile", True, "command line"),
        ("wandb", True, "command line"),
    ]


def test_splits_and_recompute_points_may_be_spelled_as_in_other_applications() -> None:
    words = ("--model=resnet50", "--data=imagenet", "--gradient-acc=3", "--recompute-ch", "add_1")
    plan_json = plan(*words, "--pipeline-splits", "b1/2/relu", "stage3/unit4/relu")

    assert [stage["first"] for stage in plan_json["stages"]] == [
        "conv1",
        "layer1/2/relu",
        "layer3/3/relu",
    ]
    assert plan_json["recompute"]["kept"] == ["layer1/1/add"]
    assert plan_json["options"]["pipeline_splits"]["value"] == ["b1/2/relu", "stage3/unit4/relu"]


@pytest.mark.parametrize("extra", [(), ("--shards", "2")])
def test_the_split_points_are_listed(extra: tuple[str, ...]) -> None:
    result = convoy("plan", "--model", "resnet8", "--pipeline-splits", "list", *extra)
    title, *rows = result.out.splitlines()

    assert (result.code, result.err) == (0, "")
    assert title.startswith("a stage can start at")
    assert (rows[0].split()[0], rows[-1].split()[0], len(rows)) == ("bn1", "fc", 27)


def test_the_list_is_available_as_json() -> None:
    result = convoy("plan", "--model", "resnet8", "--pipeline-splits", "list", "--json")
    points = json.loads(result.out)

    tensor_bytes = 32 * 4 * 16 * 32 * 32
    assert points[3] == {
        "name": "layer1/0/bn1",
        "tensors": 2,
        "bytes": 2 * tensor_bytes,
        "work_before": pytest.approx(0.229, abs=1e-3),
        "parameters_before": 3 * 16 * 9 + 2 * 16 + 16 * 16 * 9,
        "parameters_after": 75_290 - (3 * 16 * 9 + 2 * 16 + 16 * 16 * 9),
        "activations_before": 3 * tensor_bytes,  # two convolutions and a norm
        "activations_after": points[-1]["activations_before"]
        + points[-1]["activations_after"]
        - 3 * tensor_bytes,
        "also": [],
    }


def test_every_point_of_the_list_can_be_a_split() -> None:
    words = ("--model", "resnet8", "--gradient-a", "2")
    listed = convoy("plan", *words, "--pipeline-splits", "list", "--json").out
    for point in json.loads(listed):
        plan_json = plan(*words, "--pipeline-splits", point["name"])

        assert plan_json["stages"][1]["first"] == point["name"]
        assert plan_json["memory"][0]["link"] == point["bytes"]


def test_an_invalid_split_mentions_the_list() -> None:
    result = convoy("plan", "--pipeline-splits", "layer2/0/con1")

    assert (result.code, result.out) == (2, "")
    assert "did you mean layer2/0/conv1" in result.err
    assert "`--pipeline-splits list`" in result.err


def documented_plans(page: str) -> list[tuple[str, str]]:
    """The plans in a page: each command with its output."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    return re.findall(r"```console\n\$ convoy (plan [^\n]+)\n([^$`]+)```", text)


PIPELINE_PLANS, RATE_PLANS = documented_plans("pipeline.md"), documented_plans("regularization.md")


@pytest.mark.parametrize(("command", "output"), [*PIPELINE_PLANS, *RATE_PLANS])
def test_the_plans_in_the_docs_match_the_output(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    printed = convoy(*shlex.split(command)).out
    expected = output.removesuffix("…\n")  # a long table is shortened in the docs

    assert expected in printed


def test_the_docs_contain_plots_of_learning_rates() -> None:
    assert len(RATE_PLANS) == 3
    assert all("│" in output and "update" in output for _, output in RATE_PLANS)


def test_the_docs_draw_every_schedule() -> None:
    schedules = {
        command.split("--pipeline-schedule ")[1].split()[0]
        for command, output in PIPELINE_PLANS
        if "F0" in output
    }

    assert schedules == set(option_table()["pipeline_schedule"].limit.choices)


def test_stages_that_share_a_device_may_have_different_memory_proportions() -> None:
    splits = ("--pipeline-splits", "layer2/0", "layer3/0", "--shards", "1")
    plan_json = plan(
        "--model",
        "resnet20",
        *splits,
        "--pipeline-schedule",
        "sequential",
        "--available-memory-proportion",
        "0.1",
        "0.2",
        "0.3",
    )

    assert plan_json["options"]["available_memory_proportion"]["value"] == [0.1, 0.2, 0.3]
    assert plan_json["topology"]["stages"] == 1
