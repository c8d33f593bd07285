"""The plan as JSON: stable keys, plain values, and the numbers of the plan."""

import json
from typing import Any

import pytest

from convoy.config.schema import Setting, build_config, flatten_config, settings_from
from convoy.planning.plan import RunPlan, plan_run
from convoy.planning.render import plan_as_json

OPTIONS: dict[str, Any] = {
    "model": "resnet8",
    "shards": 2,
    "gradient_accumulation": 4,
    "replicas": 2,
    "micro_batch_size": 4,
    "epoch": 2.5,
    "warmup_epoch": 1,
}

KEYS = {
    "network": {"parameters", "macs", "image_size", "classes"},
    "batch": {
        "micro_batch_size",
        "gradient_accumulation",
        "replicas",
        "bn_span",
        "samples_per_update",
    },
    "topology": {"hosts", "instances", "replicas", "stages", "processes"},
    "stages": {"stage", "device", "first", "last", "layers", "parameters", "macs"},
    "splits": {"layers", "balanced"},
    "recompute": {"enabled", "kept", "folded"},
    "schedule": {"name", "unit", "length", "ramp_share", "stash", "actions"},
    "memory": {
        "weights",
        "gradients",
        "optimizer_state",
        "offloaded",
        "stash_sets",
        "stash",
        "activations",
        "link",
        "total",
    },
    "learning_rate": {"schedule", "base", "first", "highest", "last", "at_epochs", "changes"},
    "updates": {"samples", "per_epoch", "total", "epochs", "images"},
    "phases": {
        *("name", "network", "batch", "memory", "learning_rate", "updates", "frozen"),
    },
    "options": {"value", "source"},
    "without_effect": {"option", "reason"},
    "unavailable": {"option", "value", "source", "reason"},
}


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    return plan_run(build_config(OPTIONS))


@pytest.fixture(scope="module")
def document(plan: RunPlan) -> dict[str, Any]:
    """The JSON document, encoded and decoded."""
    settings = settings_from("default", flatten_config(plan.config))
    settings["model"] = Setting("resnet8", "command line")
    document: dict[str, Any] = json.loads(json.dumps(plan_as_json(plan, settings)))
    return document


def test_the_sections_are_stable(document: dict[str, Any]):
    assert set(document) == {"model", "data", "layout", *KEYS}


ROWS = {"stages", "memory", "phases", "options", "without_effect", "unavailable"}


@pytest.mark.parametrize("section", sorted(KEYS.keys() - ROWS))
def test_the_keys_of_a_section_are_stable(document: dict[str, Any], section: str):
    assert set(document[section]) == KEYS[section]


@pytest.mark.parametrize("section", ["stages", "memory"])
def test_the_keys_of_every_row_are_stable(document: dict[str, Any], section: str):
    assert [set(row) for row in document[section]] == [KEYS[section]] * 2


def test_every_option_has_its_value_and_source(document: dict[str, Any]):
    assert {frozenset(item) for item in document["options"].values()} == {
        frozenset(KEYS["options"])
    }
    assert document["options"]["model"] == {"value": "resnet8", "source": "command line"}
    assert document["options"]["epoch"] == {"value": 2.5, "source": "default"}
    assert document["options"]["pipeline_splits"]["value"] == []


def test_options_without_effect_are_named_with_the_reason(plan: RunPlan, document: dict[str, Any]):
    values = {
        "lr_decay": Setting(0.3, "command line"),
        "reduction": Setting("fast", "command line"),
    }

    assert document["without_effect"] == []
    assert plan_as_json(plan, values)["without_effect"] == [
        {"option": "lr_decay", "reason": "--lr-decay has no effect with --lr-schedule cosine"}
    ]


def test_the_numbers_in_the_json_match_the_plan(document: dict[str, Any], plan: RunPlan):
    assert (document["model"], document["data"]) == ("resnet8", "shapes")
    assert document["layout"] == "2 replicas × 2 stages"
    assert document["network"]["parameters"] == 75_290
    assert document["batch"]["samples_per_update"] == 32
    assert document["topology"]["processes"] == 4
    assert document["updates"] == {
        "samples": 8000,
        "per_epoch": 250,
        "total": 625,
        "epochs": 2.5,
        "images": 20_000,
    }
    assert [row["total"] for row in document["memory"]] == [item.total for item in plan.memory]


def test_stages_name_all_their_layers_and_add_up(document: dict[str, Any], plan: RunPlan):
    stages = document["stages"]

    assert [name for row in stages for name in row["layers"]] == [
        layer.name for layer in plan.network.layers
    ]
    assert [(row["first"], row["last"]) for row in stages] == [
        (row["layers"][0], row["layers"][-1]) for row in stages
    ]
    assert sum(row["parameters"] for row in stages) == 75_290
    assert sum(row["macs"] for row in stages) == document["network"]["macs"]


def test_stage_boundaries_and_recomputation_are_in_the_json(document: dict[str, Any]):
    assert document["splits"] == {"layers": ["layer2/0/bn1"], "balanced": True}
    assert document["recompute"] == {"enabled": True, "kept": [], "folded": []}


def test_folded_stages_are_named_by_their_first_layers():
    options = {"model": "resnet8", "pipeline_splits": ("layer2", "fc"), "shards": 1}
    plan = plan_run(build_config({**options, "pipeline_schedule": "sequential"}))

    assert plan_as_json(plan, {})["recompute"] == {
        "enabled": True,
        "kept": ["layer1/0/relu", "avgpool"],
        "folded": ["conv1", "layer2/0/conv1", "fc"],
    }


def test_the_schedule_lists_every_action(document: dict[str, Any]):
    assert document["schedule"]["actions"] == [
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_the_json_has_the_rate_at_the_start_of_every_epoch(document: dict[str, Any], plan: RunPlan):
    rates = plan.loop.learning_rate

    changes = document["learning_rate"].pop("changes")

    assert document["learning_rate"] == {
        "schedule": "cosine",
        "base": 0.1,
        "first": 0.0,
        "highest": rates.max_lr,
        "last": rates.rate(624),
        "at_epochs": [rates.rate(0), rates.rate(250), rates.rate(500)],
    }
    assert changes[:2] == [
        {"update": 0, "epoch": 0.0, "rate": 0.0},
        {"update": 250, "epoch": 1.0, "rate": rates.rate(250)},
    ]
    assert changes[-1] == {"update": 624, "epoch": 624 / 250, "rate": rates.rate(624)}
    assert len(changes) == 200


def test_the_base_rate_may_depend_on_the_batch():
    options = {"model": "resnet8", "lr": None, "base_learning_rate_exponent": -6.0}
    plan = plan_run(build_config({**options, "warmup_epoch": 1, "lr_schedule": "polynomial"}))
    rates = plan_as_json(plan, {})["learning_rate"]

    assert (rates["base"], rates["first"], rates["highest"]) == (0.5, 0.0, 0.5)


def test_unavailable_values_are_listed_with_their_source(document: dict[str, Any]):
    config = build_config({"wandb": True})
    values = {"wandb": Setting(True, "command line"), "lr": Setting(0.1, "default")}

    assert document["unavailable"] == []
    assert plan_as_json(plan_run(config), values)["unavailable"] == [
        {
            "option": "wandb",
            "value": True,
            "source": "command line",
            "reason": "--wandb true is not available in this version; use --no-wandb",
        }
    ]
