"""Plans are consistent, and impossible configurations are refused."""

from typing import Any

import pytest

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.planning.plan import RunPlan, plan_run


def plan(source_samples: int | None = None, **options: Any) -> RunPlan:
    """The plan of a small network; `source_samples` is the size of the data source."""
    return plan_run(build_config({"model": "resnet8", **options}), source_samples)


def test_the_parts_of_a_plan_are_consistent():
    run = plan(micro_batch_size=4, gradient_accumulation=4, replicas=2, shards=2, epoch=3)

    assert run.batch.samples_per_update == run.loop.samples_per_update == 32
    assert (run.topology.stages, run.topology.replicas, run.topology.processes) == (2, 2, 4)
    assert len(run.stages) == len(run.memory) == len(run.process_devices) == 2
    assert (run.loop.updates_per_epoch, run.loop.updates) == (250, 750)


def test_stages_cover_the_network_once():
    run = plan(shards=4, gradient_accumulation=4)
    costs = [cost for stage in run.stages for cost in run.layer_costs(stage)]

    assert costs == list(run.network.costs)
    assert [name for stage in run.stages for name in stage.names] == [item.name for item in costs]


def test_the_memory_of_all_stages_counts_every_weight_once():
    run = plan(shards=3, gradient_accumulation=3)

    assert sum(memory.weights for memory in run.memory) == 4 * 75_290


def test_a_single_stage_is_the_full_network():
    (stage,) = plan().stages

    assert (stage.names[0], stage.names[-1]) == ("conv1", "fc")


def test_stages_start_at_the_splits():
    splits = ("layer1/0/relu", "layer3/0")
    run = plan(pipeline_splits=splits, gradient_accumulation=3)

    assert [stage.names[0] for stage in run.stages] == ["conv1", "layer1/0/relu", "layer3/0/conv1"]


def test_without_splits_the_stages_are_balanced_by_cost():
    run = plan(shards=2, gradient_accumulation=2)
    work = [sum(cost.work for cost in run.layer_costs(stage)) for stage in run.stages]

    assert max(work) < 1.1 * min(work)


@pytest.mark.parametrize(
    ("options", "source_samples", "planned"),
    [
        ({"data": "cifar10"}, None, 50_000),
        ({"data": "shapes"}, None, 8_000),
        ({"data": "shapes", "samples": 640}, None, 640),
        ({"data": "cifar10"}, 4_000, 4_000),
    ],
)
def test_the_number_of_samples_is_that_of_the_source_or_the_dataset(
    options: dict[str, Any], source_samples: int | None, planned: int
):
    assert plan(source_samples, **options).loop.samples == planned


def test_an_empty_source_is_refused():
    with pytest.raises(ConfigError, match=r"needs 32 samples .* the dataset has 0;"):
        plan(source_samples=0)


@pytest.mark.parametrize(
    ("replicas", "stages", "text"),
    [
        (1, 1, "1 replica × 1 stage"),
        (2, 1, "2 replicas × 1 stage"),
        (1, 3, "1 replica × 3 stages"),
    ],
)
def test_the_layout_has_a_text(replicas: int, stages: int, text: str):
    run = plan(replicas=replicas, shards=stages, gradient_accumulation=stages)

    assert run.layout == text


def test_recomputation_follows_the_number_of_stages():
    assert not plan().recompute.enabled
    assert plan(shards=2, gradient_accumulation=2).recompute.enabled


def test_balanced_stages_are_distinguished_from_configured_splits():
    balanced = plan(shards=2, gradient_accumulation=2)
    configured = plan(pipeline_splits=("layer2",), gradient_accumulation=2)

    assert (balanced.is_balanced, balanced.stage_starts) == (True, ("layer2/0/bn1",))
    assert (configured.is_balanced, configured.stage_starts) == (False, ("layer2/0/conv1",))
    assert (plan().is_balanced, plan().stage_starts) == (False, ())


FOLDED = {
    "by devices": {"shards": 3, "device_mapping": (4, 4, 4)},
    "by one shard": {"shards": 1, "device_mapping": (4,)},
    "by both": {"shards": 1, "device_mapping": (4, 4, 4)},
    "without a number": {"device_mapping": (4, 4, 4)},
}


@pytest.mark.parametrize("options", FOLDED.values(), ids=FOLDED.keys())
def test_sequential_stages_of_one_device_are_one_process(options: dict[str, Any]):
    splits = ("layer2", "layer3/0/conv2")
    run = plan(pipeline_schedule="sequential", pipeline_splits=splits, **options)
    (stage,) = run.stages

    assert (stage.names[0], stage.names[-1]) == ("conv1", "fc")
    assert (run.topology.stages, run.topology.processes, run.process_devices) == (1, 1, (4,))
    assert [item.names[0] for item in run.folded_stages] == [
        "conv1",
        "layer2/0/conv1",
        "layer3/0/conv2",
    ]
    assert run.recompute.enabled
    assert run.recompute.checkpoints == ("layer1/0/relu", "layer3/0/relu1")


def test_folded_stages_may_be_balanced_and_have_more_checkpoints():
    run = plan(
        shards=2,
        device_mapping=(0, 0),
        pipeline_schedule="sequential",
        recompute_checkpoints=("layer3",),
    )

    assert run.is_balanced
    assert run.recompute.checkpoints == ("layer2/0/conv1", "layer3/0/relu")


def test_folding_needs_less_memory_than_one_stage_and_any_number_of_micro_batches():
    folded = plan(shards=3, device_mapping=(0, 0, 0), pipeline_schedule="sequential")
    full = plan(shards=1, gradient_accumulation=7)

    assert folded.memory[0].activations < full.memory[0].activations


def test_without_recomputation_folded_boundaries_have_no_effect():
    options = {"shards": 3, "device_mapping": (0, 0, 0), "pipeline_schedule": "sequential"}
    run = plan(enable_recompute=False, **options)

    assert len(run.folded_stages) == 3
    assert run.recompute.checkpoints == ()
    assert run.memory == plan(enable_recompute=False).memory


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline_schedule": "grouped", "device_mapping": (0, 0, 0)},
        {"pipeline_schedule": "sequential", "device_mapping": (0, 0, 1)},
        {"pipeline_schedule": "sequential"},
    ],
)
def test_all_other_stages_are_separate_processes(options: dict[str, Any]):
    run = plan(shards=3, gradient_accumulation=6, **options)

    assert (len(run.stages), run.topology.processes, run.folded_stages) == (3, 3, ())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shards": 2, "gradient_accumulation": 3}, "multiple of 2"),
        ({"shards": 2, "gradient_accumulation": 2, "device_mapping": (0, 0)}, "--device-mapping"),
        (
            {"pipeline_schedule": "sequential", "shards": 3, "device_mapping": (0,)},
            "lists 1 device for 3 stages",
        ),
        (
            {
                "pipeline_schedule": "sequential",
                "shards": 1,
                "pipeline_splits": ("fc",),
                "device_mapping": (0, 1),
            },
            "lists 2 devices for 1 stage",
        ),
        ({"shards": 99}, "99 stages need at least 99 layers but the model has 28; lower --shards"),
        ({"recompute_checkpoints": ("fc",)}, "use --enable-recompute"),
        ({"enable_recompute": True, "recompute_checkpoints": ("fz",)}, "no layer of this model"),
        ({"pipeline_splits": ("layer9",)}, "--pipeline-splits 'layer9' is not a layer"),
        ({"replicas": 3, "instances": 2}, "--instances"),
        ({"norm_type": "group", "norm_num_groups": 5}, "--norm-num-groups"),
        ({"model": "resnet18", "image_size": 17, "micro_batch_size": 1}, "--micro-batch-size 2"),
    ],
)
def test_an_impossible_plan_is_refused(options: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        plan(**options)
