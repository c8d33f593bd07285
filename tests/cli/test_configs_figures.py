"""convoy configs: the 92 configurations of the reference applications have the expected values.

`golden/configs.csv` contains the tables of those applications, with their names and with their
defaults for values that a configuration does not set. A base configuration without a network has
the values of the first configuration that extends it, but no learning rate.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import convoy

TABLE = Path(__file__).parent.parent / "golden" / "configs.csv"
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
CONVOY_CONFIGS = ("cifar10-resnet20", "resnet50-pipeline4", "shapes-resnet14")
TRAINING = [row for row in ROWS if row["optimizer"]]

SCHEDULES = {"stepped": "step", "polynomial_decay_lr": "polynomial"}
OPTIMIZERS = {"SGD": "sgd", "momentum": "sgd_combined", "RMSprop": "rmsprop_tf", "LARS": "lars"}

# The grouped schedule needs a multiple of 2 × stages micro-batches.
REFUSED_CONFIGS = {
    "mk2_efficientnet_b4_g16_64ipus_LARS": (4, 8, "38; use 32 or 40"),
    "mk2_efficientnet_b4_16ipus_base": (4, 8, "1; use 8"),
    "efficientnet_b4_16ipus_base": (4, 8, "1; use 8"),
    "efficientnet_b4_g16_large_batch_size_high_throughput": (2, 4, "1; use 4"),
}


@pytest.fixture(scope="module")
def config_rows_json() -> dict[str, dict[str, Any]]:
    result = convoy("configs", "--json")
    assert (result.code, result.err) == (0, "")
    return {row["name"]: row for row in json.loads(result.out)}


def parse_rate(text: str) -> float:
    """Parse `2^-11 × 1024` or a plain number."""
    power, _, samples = text.removeprefix("2^").partition(" × ")
    return 2.0 ** float(power) * int(samples) if samples else float(text)


def option_values(name: str) -> dict[str, Any]:
    result = convoy("configs", name, "--json")
    assert (result.code, result.err) == (0, "")
    return {option: setting["value"] for option, setting in json.loads(result.out).items()}


def test_every_configuration_of_the_applications_is_shipped(
    config_rows_json: dict[str, Any],
) -> None:
    inference = [row for row in ROWS if row["name"].startswith("inference/")]
    known = [row for row in TRAINING if row["optimizer"] in OPTIMIZERS]

    assert (len(ROWS), len(inference), len(known)) == (92, 18, 53)
    assert set(config_rows_json) == {row["name"] for row in ROWS} | set(CONVOY_CONFIGS)


def test_each_configuration_is_listed_with_its_values(config_rows_json: dict[str, Any]) -> None:
    for row in ROWS:
        config, name = config_rows_json[row["name"]], row["name"]
        batch = int(row["micro"]) * int(row["accumulated"]) * int(row["replicas"])

        assert (config["model"], config["data"]) == (row["model"], row["data"]), name
        assert config["micro_batch_size"] == int(row["micro"]), name
        assert config["gradient_accumulation"] == int(row["accumulated"]), name
        assert config["replicas"] == int(row["replicas"]), name
        assert config["global_batch_size"] == int(row["batch"]) == batch, name
        assert config["stages"] == int(row["stages"]), name
        assert config["devices"] == int(row["stages"]) * int(row["replicas"]), name
        assert not row["updates"] or config["updates_per_epoch"] == int(row["updates"]), name


def test_each_configuration_has_the_expected_options() -> None:
    for row in ROWS:
        config, name = option_values(row["name"]), row["name"]

        assert config["norm_type"] == row["norm"], name
        assert config["bn_span"] == int(row["span"]), name
        assert config["precision"] == row["precision"], name
        if row["optimizer"]:
            assert config["optimizer"] == OPTIMIZERS.get(row["optimizer"], row["optimizer"]), name
            assert bool(config["momentum"]) == (row["optimizer"] != "SGD"), name
            assert config["lr_schedule"] == SCHEDULES.get(row["schedule"], row["schedule"]), name
            assert config["epoch"] == float(row["epochs"]), name


def test_each_plan_has_the_expected_values_and_learning_rate() -> None:
    for row in [row for row in TRAINING if row["name"] not in REFUSED_CONFIGS]:
        name = row["name"]
        result = convoy("plan", "--json", "--config", name)
        assert (result.code, result.err) == (0, ""), name
        plan = json.loads(result.out)

        assert plan["batch"]["samples_per_update"] == int(row["batch"]), name
        assert len(plan["stages"]) == int(row["stages"]), name
        assert plan["topology"]["processes"] == int(row["stages"]) * int(row["replicas"]), name
        assert plan["updates"]["per_epoch"] == int(row["updates"]), name
        assert plan["updates"]["total"] == int(row["updates"]) * int(row["epochs"]), name
        assert not row["rate"] or plan["learning_rate"]["base"] == parse_rate(row["rate"]), name


def test_four_configurations_are_refused_as_in_their_application(
    config_rows_json: dict[str, Any],
) -> None:
    for name, (stages, multiple, actual) in REFUSED_CONFIGS.items():
        problem = config_rows_json[name]["problem"]
        result = convoy("plan", "--config", name)

        assert f"{stages} stages needs --gradient-accumulation" in problem
        assert f"multiple of {multiple}" in problem and problem.endswith(f"got {actual}")
        assert (result.code, result.err) == (2, f"convoy: {problem}\n")


def test_no_other_configuration_has_a_problem(config_rows_json: dict[str, Any]) -> None:
    assert {name for name, row in config_rows_json.items() if row["problem"]} == set(
        REFUSED_CONFIGS
    )
