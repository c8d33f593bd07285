"""Peak activation bytes of every stage, measured in training, against the plan.

`pytest tests/parity/test_measured_memory.py -m evidence -s` prints the full table.
"""

from collections.abc import Iterator
from itertools import product

import pytest
from support.activation_bytes import Compared, Options, compare, measure
from support.pipelines import PipelinePool, pipeline_pool

pytestmark = pytest.mark.processes

TOLERANCE = 0.15
RECOMPUTE: dict[str, Options] = {
    "all stored": {"enable_recompute": False},
    "recomputed": {"enable_recompute": True},
    "blocks stored": {"enable_recompute": True, "recompute_checkpoints": (r".*\d/\d|fire\d",)},
}
SCHEDULES = ("grouped", "interleaved", "sequential")


class MemoryBench:
    """A process pool and the memory measured on it."""

    def __init__(self, pool: PipelinePool) -> None:
        self.pool = pool
        self.results: dict[str, list[Compared]] = {}

    def compare(self, model: str, recompute: str, schedule: str) -> list[Compared]:
        name = f"{model:<18} {schedule:<12} {recompute:<12}"
        if name not in self.results:
            requested = options_for(model, len(self.pool.pipes), schedule) | RECOMPUTE[recompute]
            self.results[name] = compare(requested, self.pool.run(measure, requested))
            ratios = " ".join(f"{item.ratio:6.3f}" for item in self.results[name])
            print(f"{len(self.pool.pipes)} stages {name} planned/measured {ratios}")
        return self.results[name]


LARGE_IMAGES = ("resnet50", "mobilenet", "mobilenet-v3-small", "squeezenet")


def options_for(model: str, stages: int, schedule: str) -> Options:
    large = model in LARGE_IMAGES
    return {
        "model": model,
        "norm_type": "batch",
        "data": "generated",
        "num_classes": 10,
        "image_size": 32 if large else 16,
        "micro_batch_size": 7,  # no weight has 7 as its first dimension
        "shards": stages,
        "gradient_accumulation": (2 if large else 4) * stages,
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
def measurements(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemoryBench]:
    with pipeline_pool(request.param, tmp_path_factory.mktemp("pool")) as pool:
        yield MemoryBench(pool)


QUICK = pytest.mark.parametrize("measurements", [2, 3], indirect=True, ids="{} stages".format)
ALL = pytest.mark.parametrize("measurements", CASES, indirect=True, ids="{} stages".format)
BY_SCHEDULE = pytest.mark.parametrize("schedule", SCHEDULES)
BY_RECOMPUTE = pytest.mark.parametrize("recompute", RECOMPUTE)


def outside_tolerance(stages: list[Compared]) -> list[Compared]:
    return [stage for stage in stages if abs(stage.ratio - 1) > TOLERANCE]


@QUICK
@BY_SCHEDULE
@BY_RECOMPUTE
def test_stages_before_the_last_use_the_planned_memory(
    measurements: MemoryBench, recompute: str, schedule: str
):
    assert outside_tolerance(measurements.compare("resnet8", recompute, schedule)[:-1]) == []


@QUICK
@BY_SCHEDULE
@BY_RECOMPUTE
def test_the_last_stage_uses_the_planned_memory(
    measurements: MemoryBench, recompute: str, schedule: str
):
    assert outside_tolerance(measurements.compare("resnet8", recompute, schedule)[-1:]) == []


@QUICK
def test_a_split_backward_uses_about_the_planned_memory(measurements: MemoryBench):
    stages = measurements.compare("resnet8", "all stored", "zero-bubble")

    assert [stage for stage in stages if abs(stage.ratio - 1) > 0.2] == []


@pytest.mark.evidence
@ALL
def test_stages_of_all_networks_use_the_planned_memory(measurements: MemoryBench):
    found = compare_all(measurements)

    assert [item for stages in found for item in outside_tolerance(stages[:-1])] == []


@pytest.mark.evidence
@ALL
def test_last_stages_of_all_networks_use_the_planned_memory(measurements: MemoryBench):
    found = compare_all(measurements)

    assert [item for stages in found for item in outside_tolerance(stages[-1:])] == []


def compare_all(measurements: MemoryBench) -> list[list[Compared]]:
    models = CASES[len(measurements.pool.pipes)]
    return [measurements.compare(*item) for item in product(models, RECOMPUTE, SCHEDULES)]
