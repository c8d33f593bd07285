"""Rules that do not depend on the layers: batch, topology, devices, schedule, length."""

from typing import Any

import pytest

from convoy.config.schema import build_config
from convoy.config.sections.network import MODELS
from convoy.errors import ConfigError
from convoy.planning.plan import RunPlan, plan_run

SPLITS = ("block2b", "block4b", "block6c")


def planned(source_samples: int | None = None, **options: Any) -> RunPlan:
    values = {"model": "efficientnet-b4", "data": "imagenet", **options}
    return plan_run(build_config(values), source_samples)


def test_the_parts_of_a_plan_are_consistent():
    plan = planned(
        pipeline_splits=SPLITS,
        pipeline_schedule="grouped",
        micro_batch_size=3,
        gradient_accumulation=64,
        replicas=4,
        epoch=2,
    )

    assert plan.batch.samples_per_update == plan.loop.samples_per_update == 768
    assert (len(plan.stages), plan.topology.stages, plan.topology.processes) == (4, 4, 16)
    assert plan.process_devices == (0, 1, 2, 3)
    assert (plan.loop.updates_per_epoch, plan.loop.updates) == (1668, 3336)
    assert plan.layout == "4 replicas × 4 stages"
    assert plan.recompute.enabled and not plan.is_balanced and not plan.folded_stages


def test_without_splits_shards_sets_the_number_of_stages():
    plan = planned(shards=4, gradient_accumulation=4)

    assert (len(plan.stages), plan.is_balanced) == (4, True)


def test_looped_stages_share_devices():
    options = {"pipeline_schedule": "looped", "stages_per_device": 2, "gradient_accumulation": 2}
    plan = planned(shards=4, device_mapping=(6, 7), **options)

    assert (len(plan.stages), plan.topology.stages, plan.layout) == (
        *(4, 2, "1 replica × 4 stages on 2 devices"),
    )
    assert [plan.device_of(stage) for stage in range(4)] == [6, 7, 6, 7]


@pytest.mark.parametrize(
    "options",
    [{"shards": 1}, {"device_mapping": (3, 3, 3, 3)}, {"shards": 1, "device_mapping": (3,)}],
)
def test_sequential_stages_of_one_device_are_one_process(options: dict[str, Any]):
    plan = planned(pipeline_splits=SPLITS, pipeline_schedule="sequential", **options)

    assert (len(plan.stages), plan.topology.processes, len(plan.folded_stages)) == (1, 1, 4)
    assert plan.process_devices == ((3,) if "device_mapping" in options else (0,))
    assert plan.recompute.enabled  # at the stage boundaries


def test_the_number_of_samples_is_that_of_the_source():
    assert planned(source_samples=640).loop.samples == 640
    assert planned().loop.samples == 1_281_167


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {
                "pipeline_splits": SPLITS,
                "pipeline_schedule": "grouped",
                "gradient_accumulation": 38,
            },
            "--pipeline-schedule grouped with 4 stages .* got 38; use 32 or 40",
        ),
        (
            {"shards": 2, "gradient_accumulation": 3},
            "--pipeline-schedule interleaved with 2 stages .* use 2 or 4",
        ),
        (
            {"shards": 2, "pipeline_schedule": "zero-bubble"},
            "--pipeline-schedule zero-bubble with 2 stages",
        ),
        (
            {"shards": 3, "pipeline_schedule": "looped", "stages_per_device": 2},
            "needs a multiple of 2 stages",
        ),
        ({"shards": 2, "gradient_accumulation": 2, "device_mapping": (0, 0)}, "--device-mapping"),
        ({"shards": 2, "gradient_accumulation": 2, "device_mapping": (0,)}, "lists 1 device for 2"),
        ({"replicas": 3, "instances": 2}, "--instances"),
        ({"recompute_checkpoints": ("add",)}, "recomputation is off with one stage"),
        (
            {
                "shards": 2,
                "gradient_accumulation": 2,
                "pipeline_schedule": "zero-bubble",
                "enable_recompute": True,
            },
            "--enable-recompute cannot be used with --pipeline-schedule zero-bubble",
        ),
        ({"micro_batch_size": 2_000_000}, "the dataset has 1281167;"),
    ],
)
def test_every_rule_is_checked(options: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        planned(**options)


@pytest.mark.parametrize("model", list(MODELS))
def test_every_model_can_be_planned(model: str):
    plan = plan_run(build_config({"model": model, "data": "imagenet"}))

    assert plan.network.parameters > 10_000
    assert plan.loop.updates_per_epoch == 1_281_167 // 32
