"""Initial weights: variance, bounds, and no dependence on stage boundaries."""

import math
from itertools import pairwise

import pytest
import torch
from support.model_families import ALL
from torch import Tensor

from convoy.layers.build import build_layers
from convoy.models.layers import ConvSpec, InitRule, LayerPlan, LinearSpec
from convoy.parallel.slice import Slice

FAN_IN, FAN_OUT = 64 // 4 * 9, 96 * 9


def draw(rule: InitRule) -> tuple[Tensor, Tensor]:
    """The 13,824 weights of a convolution, and its bias."""
    operation = ConvSpec(64, 96, 3, bias=True, groups=4, init=rule)
    (module,) = build_layers([LayerPlan("conv", operation)], seed=0).values()
    return module.get_parameter("weight").detach(), module.get_parameter("bias").detach()


@pytest.mark.parametrize(
    ("rule", "variance"),
    [
        (InitRule.KAIMING_NORMAL_FAN_OUT, 2 / FAN_OUT),
        (InitRule.KAIMING_NORMAL_GROUP_FAN_OUT, 2 / (FAN_OUT / 4)),
        (InitRule.TRUNC_NORMAL_FAN_IN, 1 / FAN_IN),
        (InitRule.TRUNC_KAIMING_FAN_OUT, 2 / FAN_OUT),
        (InitRule.TRUNC_KAIMING_FAN_IN, 2 / FAN_IN),
        (InitRule.KAIMING_UNIFORM_FAN_IN, 2 / FAN_IN),
        (InitRule.NORMAL_STD_001, 1e-4),
        (InitRule.TORCH_DEFAULT, 1 / FAN_IN / 3),
        (InitRule.XAVIER_UNIFORM, 6 / (64 + 96) / 3),
        (InitRule.UNIFORM_OUT_FEATURES, 1 / 96 / 3),
    ],
)
def test_weights_have_the_mean_and_variance_of_their_rule(rule: InitRule, variance: float):
    weight, _ = draw(rule)

    assert abs(float(weight.mean())) < 5 * math.sqrt(variance / weight.numel())
    assert float(weight.var()) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize(
    "rule",
    [
        InitRule.KAIMING_NORMAL_FAN_OUT,
        InitRule.KAIMING_NORMAL_GROUP_FAN_OUT,
        InitRule.NORMAL_STD_001,
    ],
)
def test_a_normal_distribution_has_tails(rule: InitRule):
    weight, _ = draw(rule)
    tails = (weight.abs() > 2 * weight.std()).float().mean()

    assert float(tails) == pytest.approx(0.0455, abs=0.006)
    assert float(weight.abs().max()) > 3 * float(weight.std())


@pytest.mark.parametrize(
    ("rule", "variance"),
    [
        (InitRule.TRUNC_NORMAL_FAN_IN, 1 / FAN_IN),
        (InitRule.TRUNC_KAIMING_FAN_OUT, 2 / FAN_OUT),
        (InitRule.TRUNC_KAIMING_FAN_IN, 2 / FAN_IN),
    ],
)
def test_a_truncated_normal_ends_at_two_sigma(rule: InitRule, variance: float):
    weight, _ = draw(rule)
    bound = 2 * math.sqrt(variance) / 0.8796

    assert 0.99 * bound < float(weight.abs().max()) <= bound


@pytest.mark.parametrize(
    ("rule", "bound"),
    [
        (InitRule.TORCH_DEFAULT, 1 / math.sqrt(FAN_IN)),
        (InitRule.XAVIER_UNIFORM, math.sqrt(6 / 160)),
        (InitRule.UNIFORM_OUT_FEATURES, 1 / math.sqrt(96)),
    ],
)
def test_a_uniform_distribution_fills_its_bounds(rule: InitRule, bound: float):
    weight, _ = draw(rule)

    assert 0.99 * bound < float(weight.abs().max()) <= bound


@pytest.mark.parametrize("rule", InitRule)
def test_a_bias_starts_at_zero_except_with_the_torch_default(rule: InitRule):
    _, bias = draw(rule)
    bound = 1 / math.sqrt(FAN_IN) if rule is InitRule.TORCH_DEFAULT else 0.0

    assert 0.9 * bound <= float(bias.abs().max()) <= bound


def test_the_fans_of_a_linear_layer_are_its_channels():
    operation = LinearSpec(100, 400, InitRule.UNIFORM_OUT_FEATURES)
    (module,) = build_layers([LayerPlan("fc", operation)], seed=0).values()

    assert 0.99 / 20 < float(module.get_parameter("weight").detach().abs().max()) <= 1 / 20
    assert not module.get_parameter("bias").any()


def test_popart_running_variance_starts_at_zero():
    layers = ALL["resnet8 A"].layers_with(weight_init="popart")
    tensors = Slice(layers, build_layers(layers, seed=0)).named_tensors()
    variances = [item for name, item in tensors.items() if name.endswith("running_var")]

    assert variances and not any(variance.any() for variance in variances)


@pytest.mark.parametrize("application", ["pytorch", "tensorflow", "popart"])
@pytest.mark.parametrize("name", ["resnext11", "efficientnet", "efficientnet with proxy norm"])
def test_weights_do_not_depend_on_the_stage_boundaries(name: str, application: str):
    layers = ALL[name].layers_with(weight_init=application)
    full = Slice(layers, build_layers(layers, seed=7)).named_tensors()
    parts: dict[str, Tensor] = {}
    for first, end in pairwise([0, 5, len(layers) // 2, len(layers)]):
        part = layers[first:end]
        parts |= Slice(part, build_layers(part, seed=7)).named_tensors()

    assert parts.keys() == full.keys()
    assert all(torch.equal(parts[name], full[name]) for name in full)
