"""Rules of loss scaling and of what is done about values that are not finite."""

from typing import Any

import pytest

from convoy.config.resolve import broken_rules
from convoy.config.schema import build_config


def broken(**values: Any) -> list[str]:
    return [str(problem) for problem in broken_rules(build_config(values))]


@pytest.mark.parametrize(
    "values",
    [
        {"loss_scaling": 128.0},
        {"loss_scaling": 128.0, "initial_loss_scaling": 16.0},
        {"loss_scaling": 128.0, "initial_loss_scaling": 128.0},
        {"loss_scaling": 12.0, "initial_loss_scaling": 3.0},
        {"loss_scaling": 0.8, "initial_loss_scaling": 0.1},
        # An automatic scale has no ladder that could miss its end.
        {"loss_scaling": 100.0, "initial_loss_scaling": 16.0, "auto_loss_scaling": True},
        {"enable_fp_exceptions": True, "auto_loss_scaling": True},
        {"compile": True, "auto_loss_scaling": True},
        # Beyond a limit, which is told elsewhere.
        {"loss_scaling": 0.0, "initial_loss_scaling": 16.0},
        {"loss_scaling": 1.0, "initial_loss_scaling": -1.0},
    ],
)
def test_what_fits_together_passes(values: dict[str, Any]) -> None:
    assert broken(**values) == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"loss_scaling": 100.0, "initial_loss_scaling": 16.0},
            "--loss-scaling 100 is no doubling of --initial-loss-scaling 16; use 64 or 128",
        ),
        (
            {"loss_scaling": 1.0, "initial_loss_scaling": 16.0},
            "--initial-loss-scaling 16 is above --loss-scaling 1, to which it is doubled",
        ),
        (
            {"enable_fp_exceptions": True, "compile": True},
            "--enable-fp-exceptions cannot look into the programs of --compile; "
            "leave one of them out",
        ),
        (
            {"enable_fp_exceptions": True, "auto_loss_scaling": True, "precision": "16.32"},
            "--enable-fp-exceptions would stop where --auto-loss-scaling goes on with half the "
            "scale; leave one out",
        ),
    ],
)
def test_what_does_not_is_told_with_a_way_out(values: dict[str, Any], problem: str) -> None:
    assert broken(**values) == [problem]
