"""Every configuration with several stages trains in real processes to the bits of one process.

`pytest tests/parity/test_configurations.py -m evidence` runs all of them; a few are always run.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_configs import (
    DOCUMENTED,
    UPDATES,
    Cut,
    Values,
    as_shipped,
    cut_of,
    cuts,
    in_one_process,
    reduced,
    staged_names,
    train,
)

from convoy.models.layers import LayerPlan, LinearSpec
from convoy.models.network import plan_network
from convoy.planning.plan import plan_run, plan_stages

TABLE = Path(__file__).parent.parent / "golden" / "configs.csv"
OURS = "resnet50-pipeline4"
QUICK = ("mobilenet-v3-large", "B0 over 4, modified")
LONG = [names[0] for names in cuts().values() if not set(QUICK) & set(names)]

Reference = Callable[[str], Values]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What one process makes of a configuration; those with the same layers share it."""
    found: dict[Any, Values] = {}

    def find(name: str) -> Values:
        alone = in_one_process(reduced(name))
        plan = plan_run(alone.config)
        key = plan.network.layers, plan.batch
        if key not in found:
            found[key] = train(alone, tmp_path_factory.mktemp("alone") / "run")
        return found[key]

    return find


EACH = [
    *(pytest.param(name, marks=pytest.mark.slow) for name in QUICK),
    *(pytest.param(name, marks=pytest.mark.evidence) for name in LONG),
]


@pytest.mark.processes
@pytest.mark.parametrize("name", EACH)
def test_every_line_has_the_gradients_and_weights_of_one_process(
    name: str, reference: Reference, tmp_path: Path
):
    found = train(reduced(name), tmp_path / "run")

    assert len(found) == UPDATES
    assert found == reference(name)


def test_every_configuration_with_several_stages_is_run():
    """The table is typed from the applications; stages on one device count as one there."""
    with TABLE.open(encoding="utf-8") as file:
        several = {row["name"] for row in csv.DictReader(file) if int(row["stages"]) > 1}
    run = {name for names in cuts().values() if {*LONG, *QUICK} & set(names) for name in names}
    lines = {name for name in run - set(DOCUMENTED) if not is_folded(name)}

    assert several | {OURS} == lines
    assert set(staged_names()) | set(DOCUMENTED) == run


def is_folded(name: str) -> bool:
    return bool(plan_run(reduced(name).config).folded_stages)


@pytest.mark.parametrize("name", staged_names())
def test_a_reduced_configuration_is_cut_as_the_whole_one(name: str):
    full = as_shipped(name)
    network, small = plan_network(full), plan_run(reduced(name).config)
    ours = small.folded_stages or small.stages

    assert [headless(layer) for layer in network.layers] == [
        headless(layer) for layer in small.network.layers
    ]
    assert small.schedule.name == full.pipeline.pipeline_schedule
    if full.pipeline.pipeline_splits:  # what is balanced goes by the cost of an image's size
        assert [our.first for our in ours] == [stage.first for stage in plan_stages(full, network)]


def headless(layer: LayerPlan) -> LayerPlan:
    """Without the number of classes."""
    if isinstance(layer.operation, LinearSpec):
        return replace(layer, operation=replace(layer.operation, outputs=0))
    return layer


def test_lines_that_are_cut_alike_are_run_once():
    alike: dict[Cut, list[str]] = cuts()

    assert alike[cut_of(plan_run(reduced("resnext101_16ipus").config))] == [
        "mk2_resnext101_16ipus",
        "resnext101_16ipus",
    ]
    assert sum(map(len, alike.values())) == len(staged_names()) + len(DOCUMENTED)
