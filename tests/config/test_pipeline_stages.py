"""The number of pipeline stages, and when they share a device."""

from typing import Any

import pytest

from convoy.config.sections.parallel import PipelineConfig


def pipeline_config(**values: Any) -> PipelineConfig:
    return PipelineConfig(**values)


@pytest.mark.parametrize(
    ("values", "stages"),
    [
        ({}, 1),
        ({"shards": 4}, 4),
        ({"pipeline_splits": ("b", "d")}, 3),
        ({"pipeline_splits": ("b", "d"), "shards": 3}, 3),
        ({"pipeline_splits": ("b", "d"), "shards": 1}, 3),
    ],
)
def test_splits_define_the_stages_otherwise_shards(values: dict[str, Any], stages: int):
    assert pipeline_config(**values).stages == stages


FOUR = {"pipeline_splits": ("b", "c", "d"), "pipeline_schedule": "sequential"}


@pytest.mark.parametrize(
    "values",
    [
        {**FOUR, "shards": 1},
        {**FOUR, "device_mapping": (5, 5, 5, 5)},
        {**FOUR, "shards": 1, "device_mapping": (5,)},
        {"shards": 2, "device_mapping": (0, 0), "pipeline_schedule": "sequential"},
    ],
)
def test_sequential_stages_on_one_device_count_as_one(values: dict[str, Any]):
    assert pipeline_config(**values).shares_one_device
    assert pipeline_config(**values).planned_stages == 1


@pytest.mark.parametrize(
    ("values", "stages"),
    [
        (FOUR, 4),
        ({**FOUR, "shards": 1, "pipeline_schedule": "grouped"}, 4),
        ({**FOUR, "device_mapping": (0, 0, 0, 1)}, 4),
        ({**FOUR, "device_mapping": (0,)}, 4),
        ({"shards": 1, "pipeline_schedule": "sequential"}, 1),
    ],
)
def test_other_stages_are_not_merged(values: dict[str, Any], stages: int):
    assert not pipeline_config(**values).shares_one_device
    assert pipeline_config(**values).planned_stages == stages
