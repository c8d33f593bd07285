"""Init rules: the distribution of each rule, and the rules of each family."""

import math
from dataclasses import replace
from typing import Any

import pytest
from support.model_families import Small

from convoy.layers.build import InitDistribution, init_distribution
from convoy.models.layers import ConvSpec, InitRule, LinearSpec, NormSpec, ProxySqueezeExciteSpec

CONV = ConvSpec(inputs=24, outputs=48, kernel=3, groups=4)
TRUNCATED_STD = 0.8796  # standard deviation of a normal distribution truncated at ± 2


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            InitRule.TORCH_DEFAULT,
            InitDistribution("uniform", 1 / math.sqrt(54), 1 / math.sqrt(54)),
        ),  # 24 ÷ 4 × 9
        (InitRule.KAIMING_NORMAL_FAN_OUT, InitDistribution("normal", math.sqrt(2 / 432))),  # 48 × 9
        (InitRule.KAIMING_NORMAL_GROUP_FAN_OUT, InitDistribution("normal", math.sqrt(2 / 108))),
        (
            InitRule.TRUNC_NORMAL_FAN_IN,
            InitDistribution("truncated", math.sqrt(1 / 54) / TRUNCATED_STD),
        ),
        (
            InitRule.TRUNC_KAIMING_FAN_OUT,
            InitDistribution("truncated", math.sqrt(2 / 432) / TRUNCATED_STD),
        ),
        (
            InitRule.TRUNC_KAIMING_FAN_IN,
            InitDistribution("truncated", math.sqrt(2 / 54) / TRUNCATED_STD),
        ),
        (InitRule.XAVIER_UNIFORM, InitDistribution("uniform", math.sqrt(6 / 72))),
        (InitRule.UNIFORM_OUT_FEATURES, InitDistribution("uniform", 1 / math.sqrt(48))),
        (InitRule.KAIMING_UNIFORM_FAN_IN, InitDistribution("uniform", math.sqrt(6 / 54))),
        (InitRule.NORMAL_STD_001, InitDistribution("normal", 0.01)),
    ],
)
def test_the_distribution_of_each_rule(rule: InitRule, expected: InitDistribution):
    distribution = init_distribution(replace(CONV, init=rule))

    assert distribution.kind == expected.kind
    assert (distribution.std_or_bound, distribution.bias) == pytest.approx(
        (expected.std_or_bound, expected.bias)
    )


def test_every_rule_has_a_distribution():
    assert all(init_distribution(replace(CONV, init=rule)).std_or_bound > 0 for rule in InitRule)


def test_the_standard_deviation_of_a_truncated_normal():
    density, inside = math.exp(-2) / math.sqrt(2 * math.pi), 1 - math.erfc(2 / math.sqrt(2))

    assert math.sqrt(1 - 2 * 2 * density / inside) == pytest.approx(TRUNCATED_STD, abs=1e-4)


def rules(options: dict[str, Any]) -> dict[str, set[InitRule]]:
    """The init rules of plain convolutions, grouped convolutions and the head."""
    found: dict[str, set[InitRule]] = {"plain": set(), "grouped": set(), "head": set()}
    for layer in Small(options, 64).plan.layers:
        match layer.operation:
            case ConvSpec() as conv:
                kind = "grouped" if conv.groups > 1 else "plain"
                found["head" if layer.name == "conv10" else kind].add(conv.init)
            case LinearSpec() as linear:
                found["head"].add(linear.init)
            case ProxySqueezeExciteSpec(_, reduce, expand):
                found["plain"] |= {reduce.init, expand.init}
    return found


RULES = {
    ("resnet50", "pytorch"): (InitRule.KAIMING_NORMAL_FAN_OUT, None, InitRule.TORCH_DEFAULT),
    ("resnet50", "tensorflow"): (InitRule.TRUNC_NORMAL_FAN_IN, None, InitRule.XAVIER_UNIFORM),
    ("resnet50", "popart"): (InitRule.XAVIER_UNIFORM, None, InitRule.XAVIER_UNIFORM),
    ("resnext50", "pytorch"): (
        InitRule.KAIMING_NORMAL_FAN_OUT,
        InitRule.KAIMING_NORMAL_FAN_OUT,
        InitRule.TORCH_DEFAULT,
    ),
    ("resnext50", "tensorflow"): (
        InitRule.TRUNC_NORMAL_FAN_IN,
        InitRule.TRUNC_NORMAL_FAN_IN,
        InitRule.XAVIER_UNIFORM,
    ),
    ("resnext50", "popart"): (
        InitRule.XAVIER_UNIFORM,
        InitRule.XAVIER_UNIFORM,
        InitRule.XAVIER_UNIFORM,
    ),
    ("efficientnet-b0", "pytorch"): (
        InitRule.KAIMING_NORMAL_GROUP_FAN_OUT,
        InitRule.KAIMING_NORMAL_GROUP_FAN_OUT,
        InitRule.UNIFORM_OUT_FEATURES,
    ),
    ("efficientnet-b0", "tensorflow"): (
        InitRule.TRUNC_KAIMING_FAN_OUT,
        InitRule.TRUNC_KAIMING_FAN_IN,
        InitRule.XAVIER_UNIFORM,
    ),
    ("mobilenet", "pytorch"): (
        InitRule.KAIMING_NORMAL_FAN_OUT,
        InitRule.KAIMING_NORMAL_FAN_OUT,
        InitRule.NORMAL_STD_001,
    ),  # as in torchvision
    ("mobilenet-v3-large", "pytorch"): (
        InitRule.TORCH_DEFAULT,
        InitRule.TORCH_DEFAULT,
        InitRule.TORCH_DEFAULT,
    ),
    ("mobilenet-v3-small", "pytorch"): (
        InitRule.TORCH_DEFAULT,
        InitRule.TORCH_DEFAULT,
        InitRule.TORCH_DEFAULT,
    ),
    ("squeezenet", "pytorch"): (InitRule.KAIMING_UNIFORM_FAN_IN, None, InitRule.NORMAL_STD_001),
    ("squeezenet", "tensorflow"): (
        InitRule.TRUNC_NORMAL_FAN_IN,
        None,
        InitRule.TRUNC_NORMAL_FAN_IN,
    ),
}


@pytest.mark.parametrize(("network", "expected"), RULES.items(), ids=map(" ".join, RULES))
def test_each_family_has_the_init_of_its_application(
    network: tuple[str, str], expected: tuple[InitRule | None, ...]
):
    model, application = network
    expected_sets = [set() if rule is None else {rule} for rule in expected]

    assert list(rules({"model": model, "weight_init": application}).values()) == expected_sets


def test_with_proxy_norm_gates_have_the_init_of_convolutions():
    options = {"model": "efficientnet-b0", "weight_init": "tensorflow", "proxy_norm": True}

    assert rules(options)["plain"] == {InitRule.TRUNC_KAIMING_FAN_OUT}


def test_wider_groups_use_the_torch_default_as_in_the_pytorch_application():
    wide = {"model": "efficientnet-b0", "group_dim": 16}

    assert rules(wide)["grouped"] == {InitRule.TORCH_DEFAULT}
    assert rules(wide)["plain"] == {InitRule.KAIMING_NORMAL_GROUP_FAN_OUT}
    assert rules({**wide, "weight_init": "tensorflow"})["grouped"] == {
        InitRule.TRUNC_KAIMING_FAN_IN
    }


@pytest.mark.parametrize(
    ("application", "variance"), [("pytorch", 1.0), ("tensorflow", 1.0), ("popart", 0.0)]
)
def test_the_running_variance_starts_at_zero_only_in_popart(application: str, variance: float):
    layers = Small({"model": "resnet50", "weight_init": application}, 64).plan.layers
    norms = [layer.operation for layer in layers if isinstance(layer.operation, NormSpec)]

    assert {norm.initial_running_var for norm in norms} == {variance}
