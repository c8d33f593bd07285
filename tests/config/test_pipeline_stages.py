"""How many stages are asked for, and when they share a device."""

from typing import Any

import pytest

from convoy.config.sections.parallel import PipelineConfig


def wish(**asked: Any) -> PipelineConfig:
    return PipelineConfig(**asked)


@pytest.mark.parametrize(
    ("asked", "stages"),
    [
        ({}, 1),
        ({"shards": 4}, 4),
        ({"pipeline_splits": ("b", "d")}, 3),
        ({"pipeline_splits": ("b", "d"), "shards": 3}, 3),
        ({"pipeline_splits": ("b", "d"), "shards": 1}, 3),
    ],
)
def test_splits_make_the_stages_and_else_their_number(asked: dict[str, Any], stages: int):
    assert wish(**asked).stages == stages


FOUR = {"pipeline_splits": ("b", "c", "d"), "pipeline_schedule": "sequential"}


@pytest.mark.parametrize(
    "asked",
    [
        {**FOUR, "shards": 1},
        {**FOUR, "device_mapping": (5, 5, 5, 5)},
        {**FOUR, "shards": 1, "device_mapping": (5,)},
        {"shards": 2, "device_mapping": (0, 0), "pipeline_schedule": "sequential"},
    ],
)
def test_sequential_stages_of_one_device_count_as_one(asked: dict[str, Any]):
    assert wish(**asked).folds_into_one
    assert wish(**asked).planned_stages == 1


@pytest.mark.parametrize(
    ("asked", "stages"),
    [
        (FOUR, 4),
        ({**FOUR, "shards": 1, "pipeline_schedule": "grouped"}, 4),
        ({**FOUR, "device_mapping": (0, 0, 0, 1)}, 4),
        ({**FOUR, "device_mapping": (0,)}, 4),
        ({"shards": 1, "pipeline_schedule": "sequential"}, 1),
    ],
)
def test_all_others_are_counted_one_by_one(asked: dict[str, Any], stages: int):
    assert not wish(**asked).folds_into_one
    assert wish(**asked).planned_stages == stages
