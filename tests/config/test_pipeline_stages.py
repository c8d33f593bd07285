"""The number of pipeline stages, and when they share a device."""

from typing import Any

import pytest

from convoy.config.sections.parallel import PipelineConfig


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
def test_the_number_of_stages_is_set_by_splits_or_by_shards(values: dict[str, Any], stages: int):
    assert PipelineConfig(**values).stages == stages


FOUR_STAGES = {"pipeline_splits": ("b", "c", "d"), "pipeline_schedule": "sequential"}


@pytest.mark.parametrize(
    "values",
    [
        {**FOUR_STAGES, "shards": 1},
        {**FOUR_STAGES, "device_mapping": (5, 5, 5, 5)},
        {**FOUR_STAGES, "shards": 1, "device_mapping": (5,)},
        {"shards": 2, "device_mapping": (0, 0), "pipeline_schedule": "sequential"},
    ],
)
def test_sequential_stages_on_one_device_count_as_one(values: dict[str, Any]):
    assert PipelineConfig(**values).shares_one_device
    assert PipelineConfig(**values).planned_stages == 1


@pytest.mark.parametrize(
    ("values", "stages"),
    [
        (FOUR_STAGES, 4),
        ({**FOUR_STAGES, "shards": 1, "pipeline_schedule": "grouped"}, 4),
        ({**FOUR_STAGES, "device_mapping": (0, 0, 0, 1)}, 4),
        ({**FOUR_STAGES, "device_mapping": (0,)}, 4),
        ({"shards": 1, "pipeline_schedule": "sequential"}, 1),
    ],
)
def test_other_stages_are_not_merged(values: dict[str, Any], stages: int):
    assert not PipelineConfig(**values).shares_one_device
    assert PipelineConfig(**values).planned_stages == stages
