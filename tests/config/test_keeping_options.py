"""Options of keeping and telling that are declared before their machinery is built."""

from typing import Any

import pytest

from convoy.config.availability import unavailable
from convoy.config.fields import Reach
from convoy.config.layers import from_source
from convoy.config.resolve import Asked, resolve
from convoy.config.schema import option_table

NOT_BUILT: dict[str, Any] = {
    "num_inference_thread": 2,
    "logs": False,
    "disable_metrics": True,
    "analyze_nans": True,
    "mlperf_logging": True,
    "profile": True,
    "profile_compilation": True,
    "wandb": True,
    "wandb_project": "mine",
    "wandb_id": "a1",
    "wandb_weight_histogram": True,
}
KEEPING = ("checkpoint", "average", "validation", "report")


@pytest.mark.parametrize("name", NOT_BUILT)
def test_what_is_not_built_is_known_to_be_unavailable(name: str) -> None:
    asked = from_source("command line", {name: NOT_BUILT[name]})
    settings = resolve(Asked(asked, environment={})).settings

    assert [one.option for one in unavailable(settings)] == [name]


def test_every_other_option_of_keeping_works_here() -> None:
    rows = [row for row in option_table().values() if row.section in KEEPING]

    assert {row.name for row in rows if row.pending} == set(NOT_BUILT)
    assert {row.declared.reach for row in rows} == {Reach.HERE}


def test_nothing_usual_is_unavailable() -> None:
    assert unavailable(resolve(Asked(environment={})).settings) == []
