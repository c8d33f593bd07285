"""Every configuration with several stages has the bits of one process, in real processes.

`pytest tests/parity/test_configurations.py -m evidence` runs all of them.
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
CONVOY_ONLY = "resnet50-pipeline4"
QUICK = ("mobilenet-v3-large", "B0 over 4, modified")
LONG = [names[0] for names in cuts().values() if not set(QUICK) & set(names)]

Reference = Callable[[str], Values]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The result of one process; configurations with the same layers share it."""
    found: dict[Any, Values] = {}

    def find(name: str) -> Values:
        single = in_one_process(reduced(name))
        plan = plan_run(single.config)
        key = plan.network.layers, plan.batch
        if key not in found:
            found[key] = train(single, tmp_path_factory.mktemp("single") / "run")
        return found[key]

    return find


CONFIGURATIONS = [
    *(pytest.param(name, marks=pytest.mark.slow) for name in QUICK),
    *(pytest.param(name, marks=pytest.mark.evidence) for name in LONG),
]


@pytest.mark.processes
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_pipeline_has_the_gradients_and_weights_of_one_process(
    name: str, reference: Reference, tmp_path: Path
):
    found = train(reduced(name), tmp_path / "run")

    assert len(found) == UPDATES
    assert found == reference(name)


def test_every_configuration_with_several_stages_is_run():
    """The table is copied from the applications and counts stages on one device as one."""
    with TABLE.open(encoding="utf-8") as file:
        several = {row["name"] for row in csv.DictReader(file) if int(row["stages"]) > 1}
    run = {name for names in cuts().values() if {*LONG, *QUICK} & set(names) for name in names}
    pipelines = {name for name in run - set(DOCUMENTED) if not is_folded(name)}

    assert several | {CONVOY_ONLY} == pipelines
    assert set(staged_names()) | set(DOCUMENTED) == run


def is_folded(name: str) -> bool:
    return bool(plan_run(reduced(name).config).folded_stages)


@pytest.mark.parametrize("name", staged_names())
def test_a_reduced_configuration_is_split_like_the_full_one(name: str):
    full = as_shipped(name)
    network, small = plan_network(full), plan_run(reduced(name).config)
    ours = small.folded_stages or small.stages

    assert [headless(layer) for layer in network.layers] == [
        headless(layer) for layer in small.network.layers
    ]
    assert small.schedule.name == full.pipeline.pipeline_schedule
    if full.pipeline.pipeline_splits:  # balanced stages depend on the image size
        assert [stage.first for stage in ours] == [
            stage.first for stage in plan_stages(full, network)
        ]


def headless(layer: LayerPlan) -> LayerPlan:
    """Without the number of classes."""
    if isinstance(layer.operation, LinearSpec):
        return replace(layer, operation=replace(layer.operation, outputs=0))
    return layer


def test_configurations_with_equal_stages_run_once():
    by_stages: dict[Cut, list[str]] = cuts()

    assert by_stages[cut_of(plan_run(reduced("resnext101_16ipus").config))] == [
        "mk2_resnext101_16ipus",
        "resnext101_16ipus",
    ]
    assert sum(map(len, by_stages.values())) == len(staged_names()) + len(DOCUMENTED)
