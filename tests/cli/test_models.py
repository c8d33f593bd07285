"""convoy models: the table and the layers of one network."""

import json

import pytest
from running import convoy

from convoy.config.catalog import MODELS

BUILT = [name for name in MODELS if MODELS[name].built]


def test_the_table_lists_every_model_that_can_be_built() -> None:
    said = convoy("models")
    names = [line.split()[0] for line in said.out.splitlines()]

    assert (said.code, said.err) == (0, "")
    assert names == ["name", *BUILT]


def test_the_list_for_programs_has_its_stable_shape() -> None:
    rows = json.loads(convoy("models", "--json").out)

    assert [row["name"] for row in rows] == BUILT
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


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_model_that_cannot_be_built_yet_is_refused_in_one_line(more: tuple[str, ...]) -> None:
    said = convoy("models", "efficientnet-b0", *more)

    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "convoy: --model efficientnet-b0 is not available in this version; "
        "`convoy models` lists those that are\n"
    )
