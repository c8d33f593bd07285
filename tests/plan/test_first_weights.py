"""Rules of first weights: their figures, and which family begins by which."""

import math
from typing import Any

import pytest
from families import Small

from convoy.plan.first_weights import Draw, Fan, First, draw_of
from convoy.plan.operations import Conv, Linear, Norm
from convoy.plan.proxy_operations import ProxySqueezeExcite

FAN = Fan(inputs=24, outputs=48, area=9, groups=4)
CUT = 0.8796  # the deviation of what is left of a normal distribution between ± 2


@pytest.mark.parametrize(
    ("first", "draw"),
    [
        (First.TORCH, Draw("uniform", 1 / math.sqrt(54), 1 / math.sqrt(54))),  # 24 ÷ 4 × 9
        (First.HE, Draw("normal", math.sqrt(2 / 432))),  # 48 × 9
        (First.HE_OF_GROUP, Draw("normal", math.sqrt(2 / 108))),
        (First.LECUN, Draw("cut", math.sqrt(1 / 54) / CUT)),
        (First.CUT_HE, Draw("cut", math.sqrt(2 / 432) / CUT)),
        (First.CUT_HE_OF_GROUP, Draw("cut", math.sqrt(2 / 54) / CUT)),
        (First.GLOROT, Draw("uniform", math.sqrt(6 / 72))),
        (First.OUTPUTS, Draw("uniform", 1 / math.sqrt(48))),
        (First.HE_OF_INPUTS, Draw("uniform", math.sqrt(6 / 54))),
        (First.SMALL, Draw("normal", 0.01)),
    ],
)
def test_a_rule_has_its_figures(first: First, draw: Draw):
    made = draw_of(first, FAN)

    assert made.shape == draw.shape
    assert (made.spread, made.bias) == pytest.approx((draw.spread, draw.bias))


def test_every_rule_can_be_drawn():
    assert all(draw_of(first, FAN).spread > 0 for first in First)


def test_the_correction_of_a_cut_normal_is_its_deviation():
    density, below = math.exp(-2) / math.sqrt(2 * math.pi), 1 - math.erfc(2 / math.sqrt(2))

    assert math.sqrt(1 - 2 * 2 * density / below) == pytest.approx(CUT, abs=1e-4)


def rules(options: dict[str, Any]) -> dict[str, set[First]]:
    """Those of plain convolutions, of grouped ones, and of the head."""
    found: dict[str, set[First]] = {"plain": set(), "grouped": set(), "head": set()}
    for layer in Small(options, 64).plan.layers:
        match layer.operation:
            case Conv() as conv:
                kind = "grouped" if conv.groups > 1 else "plain"
                found["head" if layer.name == "conv10" else kind].add(conv.first)
            case Linear() as linear:
                found["head"].add(linear.first)
            case ProxySqueezeExcite(_, reduce, expand):
                found["plain"] |= {reduce.first, expand.first}
    return found


RULES = {
    ("resnet50", "pytorch"): (First.HE, None, First.TORCH),
    ("resnet50", "tensorflow"): (First.LECUN, None, First.GLOROT),
    ("resnet50", "popart"): (First.GLOROT, None, First.GLOROT),
    ("resnext50", "pytorch"): (First.HE, First.HE, First.TORCH),
    ("resnext50", "tensorflow"): (First.LECUN, First.LECUN, First.GLOROT),
    ("resnext50", "popart"): (First.GLOROT, First.GLOROT, First.GLOROT),
    ("efficientnet-b0", "pytorch"): (First.HE_OF_GROUP, First.HE_OF_GROUP, First.OUTPUTS),
    ("efficientnet-b0", "tensorflow"): (First.CUT_HE, First.CUT_HE_OF_GROUP, First.GLOROT),
    ("mobilenet", "pytorch"): (First.HE, First.HE, First.SMALL),  # torchvision's
    ("mobilenet-v3-large", "pytorch"): (First.TORCH, First.TORCH, First.TORCH),
    ("mobilenet-v3-small", "pytorch"): (First.TORCH, First.TORCH, First.TORCH),
    ("squeezenet", "pytorch"): (First.HE_OF_INPUTS, None, First.SMALL),
    ("squeezenet", "tensorflow"): (First.LECUN, None, First.LECUN),
}


@pytest.mark.parametrize(("which", "expected"), RULES.items(), ids=map(" ".join, RULES))
def test_a_family_begins_as_its_application_does(
    which: tuple[str, str], expected: tuple[First | None, ...]
):
    model, application = which
    sets = [set() if rule is None else {rule} for rule in expected]

    assert list(rules({"model": model, "weight_init": application}).values()) == sets


def test_by_proxy_the_gates_begin_like_other_convolutions():
    options = {"model": "efficientnet-b0", "weight_init": "tensorflow", "proxy_norm": True}

    assert rules(options)["plain"] == {First.CUT_HE}


def test_wider_groups_are_left_to_torch_as_the_pytorch_application_does():
    wide = {"model": "efficientnet-b0", "group_dim": 16}

    assert rules(wide)["grouped"] == {First.TORCH}
    assert rules(wide)["plain"] == {First.HE_OF_GROUP}
    assert rules({**wide, "weight_init": "tensorflow"})["grouped"] == {First.CUT_HE_OF_GROUP}


@pytest.mark.parametrize(
    ("application", "variance"), [("pytorch", 1.0), ("tensorflow", 1.0), ("popart", 0.0)]
)
def test_the_running_variance_begins_at_zero_in_popart_alone(application: str, variance: float):
    layers = Small({"model": "resnet50", "weight_init": application}, 64).plan.layers
    norms = [one.operation for one in layers if isinstance(one.operation, Norm)]

    assert {norm.first_variance for norm in norms} == {variance}
