"""Rules for loss scaling and non-finite values."""

import re
from typing import Any

import pytest

from convoy.config.resolve import check_rules
from convoy.config.schema import build_config


def rule_problems(**values: Any) -> list[str]:
    return [str(problem) for problem in check_rules(build_config(values))]


@pytest.mark.parametrize(
    "values",
    [
        {"loss_scaling": 128.0},
        {"loss_scaling": 128.0, "initial_loss_scaling": 16.0},
        {"loss_scaling": 128.0, "initial_loss_scaling": 128.0},
        {"loss_scaling": 12.0, "initial_loss_scaling": 3.0},
        {"loss_scaling": 0.8, "initial_loss_scaling": 0.1},
        # With automatic loss scaling the target is not reached by doubling.
        {"loss_scaling": 100.0, "initial_loss_scaling": 16.0, "auto_loss_scaling": True},
        {"enable_fp_exceptions": True, "auto_loss_scaling": True},
        {"compile": True, "auto_loss_scaling": True},
        # The limits of single options are checked elsewhere.
        {"loss_scaling": 0.0, "initial_loss_scaling": 16.0},
        {"loss_scaling": 1.0, "initial_loss_scaling": -1.0},
    ],
)
def test_valid_combinations_pass(values: dict[str, Any]) -> None:
    assert rule_problems(**values) == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"loss_scaling": 100.0, "initial_loss_scaling": 16.0},
            r"--loss-scaling 100 .* --initial-loss-scaling 16; use 64 or 128",
        ),
        (
            {"loss_scaling": 1.0, "initial_loss_scaling": 16.0},
            "--initial-loss-scaling 16 is greater than --loss-scaling 1",
        ),
        (
            {"enable_fp_exceptions": True, "compile": True},
            "--enable-fp-exceptions .* --compile",
        ),
        (
            {"enable_fp_exceptions": True, "auto_loss_scaling": True, "precision": "16.32"},
            "--enable-fp-exceptions .* --auto-loss-scaling",
        ),
    ],
)
def test_an_invalid_combination_is_reported(values: dict[str, Any], problem: str) -> None:
    (line,) = rule_problems(**values)

    assert re.match(problem, line)
