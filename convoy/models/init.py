"""How weights begin, as each of the reference applications does it. A bias begins at 0, or alike.

inputs and outputs are channels, area the pixels of a kernel:
fan_in = inputs ÷ groups × area        fan_out = outputs × area
"""

import math
from dataclasses import dataclass
from enum import StrEnum

TWO_SIGMA = 0.8796  # the deviation of a standard normal cut off at ± 2


class InitRule(StrEnum):
    """A rule of first weights."""

    TORCH = "uniform in ± 1 ÷ √fan_in, the bias too"
    HE = "normal of variance 2 ÷ fan_out"
    HE_OF_GROUP = "normal of variance 2 ÷ (fan_out ÷ groups)"
    LECUN = "normal cut off at two sigma, of variance 1 ÷ fan_in"
    CUT_HE = "normal cut off at two sigma, of variance 2 ÷ fan_out"
    CUT_HE_OF_GROUP = "normal cut off at two sigma, of variance 2 ÷ fan_in"
    GLOROT = "uniform in ± √(6 ÷ (inputs + outputs)), whatever the kernel"
    OUTPUTS = "uniform in ± 1 ÷ √outputs"
    HE_OF_INPUTS = "uniform of variance 2 ÷ fan_in"
    SMALL = "normal of deviation 0.01"


@dataclass(frozen=True)
class Fan:
    """The figures of a layer with weights."""

    inputs: int
    outputs: int
    area: int = 1
    groups: int = 1


@dataclass(frozen=True)
class Draw:
    """What is drawn: a shape, its deviation or bound, and the bound of the bias."""

    shape: str  # normal, cut, uniform
    spread: float
    bias: float = 0.0


def draw_of(first: InitRule, fan: Fan) -> Draw:
    """The rule in numbers."""
    fan_in, fan_out = fan.inputs // fan.groups * fan.area, fan.outputs * fan.area
    match first:
        case InitRule.TORCH:
            bound = 1 / math.sqrt(fan_in)
            return Draw("uniform", bound, bias=bound)
        case InitRule.HE:
            return Draw("normal", math.sqrt(2 / fan_out))
        case InitRule.HE_OF_GROUP:
            return Draw("normal", math.sqrt(2 / (fan_out // fan.groups)))
        case InitRule.LECUN:
            return Draw("cut", math.sqrt(1 / fan_in) / TWO_SIGMA)
        case InitRule.CUT_HE:
            return Draw("cut", math.sqrt(2 / fan_out) / TWO_SIGMA)
        case InitRule.CUT_HE_OF_GROUP:
            return Draw("cut", math.sqrt(2 / fan_in) / TWO_SIGMA)
        case InitRule.GLOROT:
            return Draw("uniform", math.sqrt(6 / (fan.inputs + fan.outputs)))
        case InitRule.OUTPUTS:
            return Draw("uniform", 1 / math.sqrt(fan.outputs))
        case InitRule.HE_OF_INPUTS:
            return Draw("uniform", math.sqrt(6 / fan_in))
        case InitRule.SMALL:
            return Draw("normal", 0.01)
