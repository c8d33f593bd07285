"""What a configuration says of sums is what each weight's gradient tree is built with."""

from typing import Any

import pytest
import torch

from convoy.config.schema import build_config
from convoy.numerics.gradients import DIVIDED_FIRST
from convoy.numerics.precision import DtypePolicy
from convoy.plan.plan import plan_run
from convoy.run.network import build_network
from convoy.run.parameter_groups import dtype_policy, weights_by_policy


def accumulator_and_reduction(name: str, **values: Any) -> tuple[torch.dtype | None, str]:
    policy = dtype_policy(build_config(values), name, name)
    return policy.accumulator, policy.reduction


def test_by_default_all_weights_are_alike() -> None:
    assert (
        accumulator_and_reduction("fc.weight")
        == accumulator_and_reduction("conv1.weight")
        == (None, "auto")
    )


@pytest.mark.parametrize("way", ["auto", "mean", "running-mean", "sum"])
def test_all_weights_take_the_way_that_was_requested(way: str) -> None:
    assert accumulator_and_reduction("fc.weight", gradient_reduction=way) == (None, way)


def test_the_first_rule_that_fits_holds_and_the_rest_take_the_type_of_all() -> None:
    wish = {
        "accumulator_dtype": "bfloat16",
        "accumulator_dtype_rules": ("*.bias=auto", "fc.*=float64", "*.bn?.*=float32"),
    }
    found = {
        name: accumulator_and_reduction(name, **wish)[0]
        for name in ("fc.bias", "fc.weight", "layer1.0.bn1.weight", "FC.weight", "conv1.weight")
    }

    assert found == {
        "fc.bias": None,
        "fc.weight": torch.float64,
        "layer1.0.bn1.weight": torch.float32,
        "FC.weight": torch.bfloat16,
        "conv1.weight": torch.bfloat16,
    }


@pytest.mark.parametrize("way", ["auto", "mean", "running-mean", "sum"])
def test_patterns_of_whole_names_say_what_is_divided_first(way: str) -> None:
    wish = {"gradient_reduction": way, "gradient_mean_reduce_re": (r"fc\.w", r".*\.bias")}

    assert accumulator_and_reduction("fc.bias", **wish)[1] == DIVIDED_FIRST
    assert accumulator_and_reduction("fc.weight", **wish)[1] == way


def test_weights_of_other_sums_are_of_another_kind() -> None:
    config = build_config(
        {
            "model": "resnet8",
            "accumulator_dtype_rules": ("fc.*=float64",),
            "gradient_mean_reduce_re": (".*bias",),
        }
    )
    plan = plan_run(config).network
    layers = build_network(plan, 0, torch.device("cpu")).slice
    policies = weights_by_policy(config, layers)

    assert set(policies) == {
        DtypePolicy(),
        DtypePolicy(reduction=DIVIDED_FIRST),
        DtypePolicy(accumulator=torch.float64),
        DtypePolicy(accumulator=torch.float64, reduction=DIVIDED_FIRST),
    }
    assert list(policies[DtypePolicy(accumulator=torch.float64)]) == ["fc.weight"]
    assert sum(map(len, policies.values())) == len(layers.named_weights())
