"""convoy models: the table and the layers of one network."""

import json

import pytest
from running import convoy

from convoy.config.catalog import MODELS

NAMES = list(MODELS)


def test_the_table_lists_every_model_that_can_be_built() -> None:
    said = convoy("models")
    names = [line.split()[0] for line in said.out.splitlines()]

    assert (said.code, said.err) == (0, "")
    assert names == ["name", *NAMES]


def test_the_list_for_programs_has_its_stable_shape() -> None:
    rows = json.loads(convoy("models", "--json").out)

    assert [row["name"] for row in rows] == NAMES
    assert all({"name", "parameters", "macs", "image_size"} <= set(row) for row in rows)
    assert {row["name"]: row["parameters"] for row in rows}["resnet50"] == 25_557_032


@pytest.mark.parametrize("name", ["resnet8", "resnet50"])
def test_the_layers_of_a_model_may_be_used_as_splits(name: str) -> None:
    rows = json.loads(convoy("models", name, "--json").out)
    splits = [row["name"] for row in rows][1::7]
    stages = str(len(splits) + 1)
    said = convoy("plan", "--model", name, "--gradient-a", stages, "--pipeline-splits", *splits)

    assert (said.code, said.err) == (0, "")


def test_the_layers_add_up_to_the_model() -> None:
    whole = {row["name"]: row for row in json.loads(convoy("models", "--json").out)}["resnet20"]
    layers = json.loads(convoy("models", "resnet20", "--json").out)

    assert sum(row["parameters"] for row in layers) == whole["parameters"]
    assert sum(row["macs"] for row in layers) == whole["macs"]
    assert len(layers) == whole["layers"]


def test_layers_are_shown_to_people_with_what_leaves_them() -> None:
    said = convoy("models", "resnet8")

    assert said.out.startswith("layer ")
    assert "16×32×32 + 16×32×32" in said.out


def test_a_network_that_nobody_knows_gets_near_names() -> None:
    said = convoy("models", "efficientnet-b8")

    assert (said.code, said.out) == (2, "")
    assert "efficientnet-b7" in said.err and said.err.count("\n") == 1


def test_splits_are_shown_with_what_lies_on_either_side() -> None:
    rows = json.loads(convoy("models", "resnet50", "--splits", "--json").out)
    by_name = {row["name"]: row for row in rows}
    whole = {row["name"]: row for row in json.loads(convoy("models", "--json").out)}["resnet50"]
    middle = by_name["layer3/0/conv1"]

    assert len(rows) == whole["layers"] - 1
    assert middle["parameters_before"] + middle["parameters_after"] == 25_557_032
    assert middle["parameters_before"] == 1_444_928
    both = middle["activations_before"] + middle["activations_after"]
    assert both == whole["activation_bytes"]
    assert middle["also"] == ["b3/0/1", "b3/0", "stage3/unit1"]
    assert (middle["tensors"], by_name["layer3/0/bn1"]["tensors"]) == (1, 2)


def test_splits_are_shown_to_people() -> None:
    lines = convoy("models", "efficientnet-b0", "--splits").out.splitlines()
    (gate,) = [line for line in lines if line.endswith("also block2a/SE")]

    assert lines[0].split()[:5] == ["a", "stage", "may", "begin", "at"]
    assert gate.startswith("blocks/1/0/se/pool ") and "1.2 MB in 1 tensor" in gate
