"""Rules of first weights: their figures, and which family begins by which."""

import math
from typing import Any

import pytest
from families import Small

from convoy.layers.build import Draw, Fan, draw_of
from convoy.models.layers import ConvSpec, InitRule, LinearSpec, NormSpec, ProxySqueezeExciteSpec

FAN = Fan(inputs=24, outputs=48, area=9, groups=4)
CUT = 0.8796  # the deviation of what is left of a normal distribution between ± 2


@pytest.mark.parametrize(
    ("first", "draw"),
    [
        (InitRule.TORCH, Draw("uniform", 1 / math.sqrt(54), 1 / math.sqrt(54))),  # 24 ÷ 4 × 9
        (InitRule.HE, Draw("normal", math.sqrt(2 / 432))),  # 48 × 9
        (InitRule.HE_OF_GROUP, Draw("normal", math.sqrt(2 / 108))),
        (InitRule.LECUN, Draw("cut", math.sqrt(1 / 54) / CUT)),
        (InitRule.CUT_HE, Draw("cut", math.sqrt(2 / 432) / CUT)),
        (InitRule.CUT_HE_OF_GROUP, Draw("cut", math.sqrt(2 / 54) / CUT)),
        (InitRule.GLOROT, Draw("uniform", math.sqrt(6 / 72))),
        (InitRule.OUTPUTS, Draw("uniform", 1 / math.sqrt(48))),
        (InitRule.HE_OF_INPUTS, Draw("uniform", math.sqrt(6 / 54))),
        (InitRule.SMALL, Draw("normal", 0.01)),
    ],
)
def test_a_rule_has_its_figures(first: InitRule, draw: Draw):
    made = draw_of(first, FAN)

    assert made.shape == draw.shape
    assert (made.spread, made.bias) == pytest.approx((draw.spread, draw.bias))


def test_every_rule_can_be_drawn():
    assert all(draw_of(first, FAN).spread > 0 for first in InitRule)


def test_the_correction_of_a_cut_normal_is_its_deviation():
    density, below = math.exp(-2) / math.sqrt(2 * math.pi), 1 - math.erfc(2 / math.sqrt(2))

    assert math.sqrt(1 - 2 * 2 * density / below) == pytest.approx(CUT, abs=1e-4)


def rules(options: dict[str, Any]) -> dict[str, set[InitRule]]:
    """Those of plain convolutions, of grouped ones, and of the head."""
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
    ("resnet50", "pytorch"): (InitRule.HE, None, InitRule.TORCH),
    ("resnet50", "tensorflow"): (InitRule.LECUN, None, InitRule.GLOROT),
    ("resnet50", "popart"): (InitRule.GLOROT, None, InitRule.GLOROT),
    ("resnext50", "pytorch"): (InitRule.HE, InitRule.HE, InitRule.TORCH),
    ("resnext50", "tensorflow"): (InitRule.LECUN, InitRule.LECUN, InitRule.GLOROT),
    ("resnext50", "popart"): (InitRule.GLOROT, InitRule.GLOROT, InitRule.GLOROT),
    ("efficientnet-b0", "pytorch"): (InitRule.HE_OF_GROUP, InitRule.HE_OF_GROUP, InitRule.OUTPUTS),
    ("efficientnet-b0", "tensorflow"): (InitRule.CUT_HE, InitRule.CUT_HE_OF_GROUP, InitRule.GLOROT),
    ("mobilenet", "pytorch"): (InitRule.HE, InitRule.HE, InitRule.SMALL),  # torchvision's
    ("mobilenet-v3-large", "pytorch"): (InitRule.TORCH, InitRule.TORCH, InitRule.TORCH),
    ("mobilenet-v3-small", "pytorch"): (InitRule.TORCH, InitRule.TORCH, InitRule.TORCH),
    ("squeezenet", "pytorch"): (InitRule.HE_OF_INPUTS, None, InitRule.SMALL),
    ("squeezenet", "tensorflow"): (InitRule.LECUN, None, InitRule.LECUN),
}


@pytest.mark.parametrize(("which", "expected"), RULES.items(), ids=map(" ".join, RULES))
def test_a_family_begins_as_its_application_does(
    which: tuple[str, str], expected: tuple[InitRule | None, ...]
):
    model, application = which
    sets = [set() if rule is None else {rule} for rule in expected]

    assert list(rules({"model": model, "weight_init": application}).values()) == sets


def test_by_proxy_the_gates_begin_like_other_convolutions():
    options = {"model": "efficientnet-b0", "weight_init": "tensorflow", "proxy_norm": True}

    assert rules(options)["plain"] == {InitRule.CUT_HE}


def test_wider_groups_are_left_to_torch_as_the_pytorch_application_does():
    wide = {"model": "efficientnet-b0", "group_dim": 16}

    assert rules(wide)["grouped"] == {InitRule.TORCH}
    assert rules(wide)["plain"] == {InitRule.HE_OF_GROUP}
    assert rules({**wide, "weight_init": "tensorflow"})["grouped"] == {InitRule.CUT_HE_OF_GROUP}


@pytest.mark.parametrize(
    ("application", "variance"), [("pytorch", 1.0), ("tensorflow", 1.0), ("popart", 0.0)]
)
def test_the_running_variance_begins_at_zero_in_popart_alone(application: str, variance: float):
    layers = Small({"model": "resnet50", "weight_init": application}, 64).plan.layers
    norms = [one.operation for one in layers if isinstance(one.operation, NormSpec)]

    assert {norm.first_variance for norm in norms} == {variance}
