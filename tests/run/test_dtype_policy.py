"""The dtypes and the reduction of each weight follow from the configuration."""

from typing import Any

import pytest
import torch

from convoy.config.schema import build_config
from convoy.numerics.gradients import DIVIDED_FIRST
from convoy.numerics.precision import DtypePolicy
from convoy.planning.plan import plan_run
from convoy.run.network import build_network
from convoy.run.parameter_groups import dtype_policy, weights_by_policy


def accumulator_and_reduction(name: str, **values: Any) -> tuple[torch.dtype | None, str]:
    policy = dtype_policy(build_config(values), name, None)
    return policy.accumulator, policy.reduction


FULL, MIXED = ("float32", "float32"), ("float32", "float16")  # stored, computed
HALF, BRAIN = ("float16", "float16"), ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("values", "conv", "norm"),
    [
        ({}, FULL, FULL),
        ({"precision": "16.32"}, MIXED, MIXED),
        ({"precision": "16.16"}, HALF, HALF),
        ({"precision": "16.16", "half_type": "bfloat16"}, BRAIN, BRAIN),
        ({"precision": "16.16", "offload_fp32_weight_copy": True}, MIXED, MIXED),
        ({"precision": "16.16", "full_precision_norm": True}, HALF, FULL),
        ({"precision": "16.16", "force_weight_to_fp32": ("conv1",)}, MIXED, HALF),
        ({"precision": "16.32", "force_weight_to_fp16": ("gamma",)}, MIXED, HALF),
    ],
)
def test_the_precision_sets_how_a_weight_is_stored_and_computed(
    values: dict[str, Any], conv: tuple[str, str], norm: tuple[str, str]
) -> None:
    config = build_config(values)
    policies = [
        dtype_policy(config, "conv1.weight", None),
        dtype_policy(config, "bn1.weight", "gamma"),
    ]

    assert [(policy.param.name, policy.compute.name) for policy in policies] == [conv, norm]


@pytest.mark.parametrize(("state", "name"), [("weights", "float16"), ("float32", "float32")])
def test_the_optimizer_state_has_its_own_dtype(state: str, name: str) -> None:
    config = build_config({"precision": "16.16", "optimizer_state_dtype": state})

    assert dtype_policy(config, "fc.weight", None).state.name == name


def test_all_weights_have_one_dtype_policy_by_default() -> None:
    assert (
        accumulator_and_reduction("fc.weight")
        == accumulator_and_reduction("conv1.weight")
        == (None, "auto")
    )


@pytest.mark.parametrize("reduction", ["auto", "mean", "running-mean", "sum"])
def test_all_weights_have_the_configured_reduction(reduction: str) -> None:
    assert accumulator_and_reduction("fc.weight", gradient_reduction=reduction) == (None, reduction)


def test_the_first_matching_rule_applies_and_other_weights_have_the_default_dtype() -> None:
    options = {
        "accumulator_dtype": "bfloat16",
        "accumulator_dtype_rules": ("*.bias=auto", "fc.*=float64", "*.bn?.*=float32"),
    }
    found = {
        name: accumulator_and_reduction(name, **options)[0]
        for name in ("fc.bias", "fc.weight", "layer1.0.bn1.weight", "FC.weight", "conv1.weight")
    }

    assert found == {
        "fc.bias": None,
        "fc.weight": torch.float64,
        "layer1.0.bn1.weight": torch.float32,
        "FC.weight": torch.bfloat16,
        "conv1.weight": torch.bfloat16,
    }


@pytest.mark.parametrize("reduction", ["auto", "mean", "running-mean", "sum"])
def test_patterns_match_whole_names_of_weights_to_divide_first(reduction: str) -> None:
    options = {"gradient_reduction": reduction, "gradient_mean_reduce_re": (r"fc\.w", r".*\.bias")}

    assert accumulator_and_reduction("fc.bias", **options)[1] == DIVIDED_FIRST
    assert accumulator_and_reduction("fc.weight", **options)[1] == reduction


def test_weights_with_another_accumulator_dtype_are_in_another_group() -> None:
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
