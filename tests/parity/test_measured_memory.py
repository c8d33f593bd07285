"""Peak activation bytes of every stage, seen while it trains, against what the plan promises.

`pytest tests/parity/test_measured_memory.py -m evidence -s` prints the whole table.
"""

from collections.abc import Iterator
from itertools import product

import pytest
from support.activation_bytes import Compared, Options, compare, measure
from support.pipelines import PipelinePool, pipeline_pool

pytestmark = pytest.mark.processes

CLOSE = 0.15
KEPT: dict[str, Options] = {
    "all kept": {"enable_recompute": False},
    "recomputed": {"enable_recompute": True},
    "blocks kept": {"enable_recompute": True, "recompute_checkpoints": (r".*\d/\d|fire\d",)},
}
SCHEDULES = ("grouped", "interleaved", "sequential")


class Bench:
    """A line, and what was measured on it."""

    def __init__(self, line: PipelinePool) -> None:
        self.line = line
        self.found: dict[str, list[Compared]] = {}

    def compare(self, model: str, kept: str, schedule: str) -> list[Compared]:
        name = f"{model:<18} {schedule:<12} {kept:<12}"
        if name not in self.found:
            requested = asked_for(model, len(self.line.pipes), schedule) | KEPT[kept]
            self.found[name] = compare(requested, self.line.run(measure, requested))
            ratios = " ".join(f"{item.ratio:6.3f}" for item in self.found[name])
            print(f"{len(self.line.pipes)} stages {name} planned/seen {ratios}")
        return self.found[name]


PHOTOGRAPHS = ("resnet50", "mobilenet", "mobilenet-v3-small", "squeezenet")


def asked_for(model: str, stages: int, schedule: str) -> Options:
    photograph = model in PHOTOGRAPHS
    return {
        "model": model,
        "norm_type": "batch",
        "data": "generated",
        "num_classes": 10,
        "image_size": 32 if photograph else 16,
        "micro_batch_size": 7,  # no weight has 7 as its first dimension
        "shards": stages,
        "gradient_accumulation": (2 if photograph else 4) * stages,
        "pipeline_schedule": schedule,
    }


FAMILIES = ("resnext11", "efficientnet-cifar", "mobilenet", "mobilenet-v3-small", "squeezenet")
CASES = {
    2: ("resnet8", "resnet14", "resnet20", "resnet50", *FAMILIES),
    3: ("resnet8", "resnet14", "resnet20", *FAMILIES),
    4: ("resnet8", "resnet14", "resnet20", "resnet50"),
    5: ("resnet8",),
    6: ("resnet8",),
}


@pytest.fixture(scope="module")
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("line")) as line:
        yield Bench(line)


QUICK = pytest.mark.parametrize("bench", [2, 3], indirect=True, ids="{} stages".format)
ALL = pytest.mark.parametrize("bench", CASES, indirect=True, ids="{} stages".format)
BY_SCHEDULE = pytest.mark.parametrize("schedule", SCHEDULES)
BY_KEPT = pytest.mark.parametrize("kept", KEPT)


def far_off(stages: list[Compared]) -> list[Compared]:
    return [stage for stage in stages if abs(stage.ratio - 1) > CLOSE]


@QUICK
@BY_SCHEDULE
@BY_KEPT
def test_stages_before_the_last_hold_what_is_planned(bench: Bench, kept: str, schedule: str):
    assert far_off(bench.compare("resnet8", kept, schedule)[:-1]) == []


@QUICK
@BY_SCHEDULE
@BY_KEPT
def test_the_last_stage_holds_what_is_planned(bench: Bench, kept: str, schedule: str):
    assert far_off(bench.compare("resnet8", kept, schedule)[-1:]) == []


@QUICK
def test_halves_of_a_backward_hold_about_what_is_planned(bench: Bench):
    stages = bench.compare("resnet8", "all kept", "zero-bubble")

    assert [stage for stage in stages if abs(stage.ratio - 1) > 0.2] == []


@pytest.mark.evidence
@ALL
def test_stages_of_all_networks_hold_what_is_planned(bench: Bench):
    found = compared(bench)

    assert [item for stages in found for item in far_off(stages[:-1])] == []


@pytest.mark.evidence
@ALL
def test_last_stages_of_all_networks_hold_what_is_planned(bench: Bench):
    found = compared(bench)

    assert [item for stages in found for item in far_off(stages[-1:])] == []


def compared(bench: Bench) -> list[list[Compared]]:
    models = CASES[len(bench.line.pipes)]
    return [bench.compare(*item) for item in product(models, KEPT, SCHEDULES)]
