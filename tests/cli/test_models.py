"""convoy models: the table of models, and the layers of one model."""

import json

import pytest
from support.run_convoy import convoy

from convoy.config.sections.network import MODELS

NAMES = list(MODELS)


def test_the_table_lists_every_model_that_can_be_built() -> None:
    result = convoy("models")
    names = [line.split()[0] for line in result.out.splitlines()]

    assert (result.code, result.err) == (0, "")
    assert names == ["name", *NAMES]


def test_the_json_list_has_a_stable_structure() -> None:
    rows = json.loads(convoy("models", "--json").out)

    assert [row["name"] for row in rows] == NAMES
    assert all({"name", "parameters", "macs", "image_size"} <= set(row) for row in rows)
    assert {row["name"]: row["parameters"] for row in rows}["resnet50"] == 25_557_032


@pytest.mark.parametrize("name", ["resnet8", "resnet50"])
def test_the_layers_of_a_model_may_be_used_as_splits(name: str) -> None:
    rows = json.loads(convoy("models", name, "--json").out)
    splits = [row["name"] for row in rows][1::7]
    stages = str(len(splits) + 1)
    result = convoy("plan", "--model", name, "--gradient-a", stages, "--pipeline-splits", *splits)

    assert (result.code, result.err) == (0, "")


def test_the_layers_add_up_to_the_model() -> None:
    model = {row["name"]: row for row in json.loads(convoy("models", "--json").out)}["resnet20"]
    layers = json.loads(convoy("models", "resnet20", "--json").out)

    assert sum(row["parameters"] for row in layers) == model["parameters"]
    assert sum(row["macs"] for row in layers) == model["macs"]
    assert len(layers) == model["layers"]


def test_layers_are_shown_with_their_output_shapes() -> None:
    result = convoy("models", "resnet8")

    assert result.out.startswith("layer ")
    assert "16×32×32 + 16×32×32" in result.out


def test_an_unknown_network_is_refused_with_near_names() -> None:
    result = convoy("models", "efficientnet-b8")

    assert (result.code, result.out) == (2, "")
    assert "efficientnet-b7" in result.err and result.err.count("\n") == 1


def test_splits_are_shown_with_both_sides() -> None:
    rows = json.loads(convoy("models", "resnet50", "--splits", "--json").out)
    by_name = {row["name"]: row for row in rows}
    model = {row["name"]: row for row in json.loads(convoy("models", "--json").out)}["resnet50"]
    split = by_name["layer3/0/conv1"]

    assert len(rows) == model["layers"] - 1
    assert split["parameters_before"] + split["parameters_after"] == 25_557_032
    assert split["parameters_before"] == 1_444_928
    total = split["activations_before"] + split["activations_after"]
    assert total == model["activation_bytes"]
    assert split["also"] == ["b3/0/1", "b3/0", "stage3/unit1"]
    assert (split["tensors"], by_name["layer3/0/bn1"]["tensors"]) == (1, 2)


def test_splits_are_shown_as_text() -> None:
    lines = convoy("models", "efficientnet-b0", "--splits").out.splitlines()
    (squeeze_excite,) = [line for line in lines if line.endswith("also block2a/SE")]

    assert lines[0].split()[:5] == ["a", "stage", "can", "start", "at"]
    assert (
        squeeze_excite.startswith("blocks/1/0/se/pool ") and "1.2 MB in 1 tensor" in squeeze_excite
    )
