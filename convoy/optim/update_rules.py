"""Update rules: SGD, AdamW, RMSprop, LARS. w is a weight and η the learning rate; h is the gradient
of the loss, with decay · w where the rule says so.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from convoy.config.sections.optimizer import OptimizerConfig
from convoy.numerics.flat import ALIGNMENT
from convoy.plan.parameters import share_of_squares_kept


@dataclass(frozen=True)
class StepContext:
    """What one optimizer step needs to know beside the gradients."""

    rate: float
    update: int = 0  # its number, from 0
    applied: int = 0  # updates before it that changed the weights: those that were skipped did not
    scale: float = 1.0  # of the loss: the gradient is so many times too large
    scale_before: float = 1.0  # that of the last update that changed the weights


@dataclass(frozen=True)
class Norms:
    """Euclidean norms of a weight and its gradient."""

    weight: float
    gradient: float


def row_squares(values: Tensor) -> Tensor:
    """The sum of the squares of each row of 16, in 64 bits."""
    squares = values.to(torch.float64).square_().view(-1, ALIGNMENT)
    return folded(squares.t())


def folded(parts: Tensor) -> Tensor:
    """The sum over the first dimension: the far half comes upon the near one, until one is left.

    Which numbers meet depends on how many there are, and on nothing else.
    """
    while len(parts) > 1:
        near = -(-len(parts) // 2)
        far = parts[near:]
        parts = torch.cat([parts[: len(far)] + far, parts[len(far) : near]])
    return parts[0]


def norms_of(rows: Tensor) -> Norms:
    """Of a weight and its gradient, whose rows are the columns given."""
    weight, gradient = folded(rows).tolist()
    return Norms(sqrt(weight), sqrt(gradient))


@dataclass(frozen=True)
class Block:
    """Some elements of the owned range, all alike: 32-bit numbers, to be changed in place."""

    weight: Tensor
    gradient: Tensor  # of the loss itself, no longer scaled, with the rule's decay; may be used up
    state: Mapping[str, Tensor]
    decays: bool
    norms: Norms | None = None  # of the whole weight, where the rule needs them


VELOCITY = "velocity"
MEAN = "mean"
MEAN_SQUARE = "mean_square"
BETAS = (0.9, 0.999)  # of AdamW: shares of the old mean and of the old mean square that are kept


class UpdateRule(ABC):
    """How a block of weights is updated."""

    # Names of weights whose norms it needs; if there are any, no block spans two weights.
    measured: Collection[str] = ()

    def __init__(self, config: OptimizerConfig) -> None:
        self.momentum = config.momentum
        self.decay = config.weight_decay  # as a part of the loss: w · decay joins the gradient
        # The state it needs, each with the value it begins with.
        self.slots: Mapping[str, float] = {VELOCITY: 0.0} if config.momentum else {}

    @abstractmethod
    def apply(self, block: Block, context: StepContext) -> None:
        """Change the weight and the state, in place."""

    def velocity(self, block: Block, step: Tensor) -> Tensor:
        """momentum · v + step, or the step itself without momentum."""
        if not self.momentum:
            return step
        return block.state[VELOCITY].mul_(self.momentum).add_(step)


class Sgd(UpdateRule):
    """Gradient descent, with momentum when asked.

    v ← momentum · v + h        w ← w − η · v
    """

    def apply(self, block: Block, context: StepContext) -> None:
        block.weight.add_(self.velocity(block, block.gradient), alpha=-context.rate)


class SgdCombined(UpdateRule):
    """Gradient descent whose velocity is kept in the units of the scaled loss.

    S = loss scale ÷ ratio        v ← momentum · v + S · h        w ← w − η/S · v

    A velocity of 16 bits then keeps what would vanish below its smallest number. When the scale has
    changed, what is kept is brought to the new one first. The velocity is a slot like any other, so
    it may lie off the device or be divided over replicas.
    """

    def __init__(self, config: OptimizerConfig) -> None:
        super().__init__(config)
        self.ratio = config.loss_velocity_scaling_ratio

    def apply(self, block: Block, context: StepContext) -> None:
        scale = context.scale / self.ratio
        if self.momentum and context.scale != context.scale_before:
            block.state[VELOCITY].mul_(context.scale / context.scale_before)
        step = self.velocity(block, block.gradient.mul_(scale))
        block.weight.add_(step, alpha=-context.rate / scale)


class AdamW(UpdateRule):
    """Means of gradients over the roots of their mean squares; decay of its own.

    m ← β₁ · m + (1 − β₁) · g        s ← β₂ · s + (1 − β₂) · g²        w ← w − η · decay · w
    w ← w − η · m/(1 − β₁ᵗ) ÷ (√(s/(1 − β₂ᵗ)) + ε)        t = updates that were applied, this too
    """

    def __init__(self, config: OptimizerConfig) -> None:
        super().__init__(config)
        self.decay, self.own_decay = 0.0, config.weight_decay
        self.slots = {MEAN: 0.0, MEAN_SQUARE: 0.0}
        self.eps = config.optimizer_eps

    def apply(self, block: Block, context: StepContext) -> None:
        kept, squares_kept = BETAS
        mean, squares = block.state[MEAN], block.state[MEAN_SQUARE]
        mean.mul_(kept).add_(block.gradient, alpha=1 - kept)
        _take_squares(squares, block.gradient, squares_kept)
        if self.own_decay and block.decays:
            block.weight.mul_(1 - context.rate * self.own_decay)
        seen, squares_seen = (1 - beta ** (context.applied + 1) for beta in BETAS)
        spread = squares.div(squares_seen).sqrt_().add_(self.eps)
        block.weight.add_(mean / spread, alpha=-context.rate / seen)


class RmsProp(UpdateRule):
    """Steps of about the same size everywhere, as torch has them.

    s ← ρ · s + (1 − ρ) · h²        v ← momentum · v + h/(√s + ε)        w ← w − η · v
    """

    first_square = 0.0

    def __init__(self, config: OptimizerConfig, kept: float) -> None:
        """`kept` is ρ."""
        super().__init__(config)
        self.eps = config.optimizer_eps
        self.kept = kept
        self.slots = {MEAN_SQUARE: self.first_square, **self.slots}

    def apply(self, block: Block, context: StepContext) -> None:
        squares = _take_squares(block.state[MEAN_SQUARE], block.gradient, self.kept)
        step = block.gradient.div_(squares.sqrt().add_(self.eps))
        block.weight.add_(self.velocity(block, step), alpha=-context.rate)


class RmsPropTf(RmsProp):
    """The same as TensorFlow has it: s begins at 1, ε is under the root, the velocity holds rates.

    s ← ρ · s + (1 − ρ) · h²        v ← momentum · v + η · h/√(s + ε)        w ← w − v
    """

    first_square = 1.0

    def apply(self, block: Block, context: StepContext) -> None:
        squares = _take_squares(block.state[MEAN_SQUARE], block.gradient, self.kept)
        step = block.gradient.div_(squares.add(self.eps).sqrt_()).mul_(context.rate)
        block.weight.sub_(self.velocity(block, step))


class Lars(UpdateRule):
    """Steps in proportion to the norm of each weight.

    q = c · ‖w‖ ÷ (‖h‖ + λ · ‖w‖ + ε), or 1 where a norm is 0
    v ← momentum · v + η · q · (h + λ · w)        w ← w − v

    A weight that is not measured has q = 1 and λ = 0. Decay acts in one place: as λ, unless λ has a
    value of its own.
    """

    def __init__(self, config: OptimizerConfig, measured: Collection[str]) -> None:
        super().__init__(config)
        self.measured = frozenset(measured)
        own = config.lars_weight_decay
        self.decay = 0.0 if own is None else config.weight_decay
        self.inner_decay = config.weight_decay if own is None else own
        self.trust = config.lars_eeta
        self.eps = config.lars_epsilon

    def apply(self, block: Block, context: StepContext) -> None:
        step, ratio = block.gradient, 1.0
        if block.norms is not None:
            step.add_(block.weight, alpha=self.inner_decay)
            ratio = self.ratio(block.norms)
        block.weight.sub_(self.velocity(block, step.mul_(context.rate * ratio)))

    def ratio(self, norms: Norms) -> float:
        """The q of a weight."""
        if not (norms.weight > 0 and norms.gradient > 0):
            return 1.0
        below = norms.gradient + self.inner_decay * norms.weight + self.eps
        return self.trust * norms.weight / below


def _take_squares(mean: Tensor, gradient: Tensor, kept: float) -> Tensor:
    """The mean square after a gradient has come."""
    return mean.mul_(kept).add_(gradient.square(), alpha=1 - kept)


def make_update_rule(
    config: OptimizerConfig, samples_per_update: int, measured: Collection[str] = ()
) -> UpdateRule:
    """The rule that the configuration names; `measured` are the weights that LARS scales."""
    match config.optimizer:
        case "sgd":
            return Sgd(config)
        case "sgd_combined":
            return SgdCombined(config)
        case "adamw":
            return AdamW(config)
        case "lars":
            return Lars(config, measured)
        case name:
            rms = RmsProp if name == "rmsprop" else RmsPropTf
            return rms(config, share_of_squares_kept(config, samples_per_update))
