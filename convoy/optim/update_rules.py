"""Update rules: SGD, AdamW, RMSprop, LARS.

w is a weight and η the learning rate; h is the gradient of the loss plus weight decay · w.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from convoy.config.sections.training import OptimizerConfig
from convoy.numerics.flat import ALIGNMENT
from convoy.planning.parameters import rmsprop_smoothing


@dataclass(frozen=True)
class StepContext:
    """Arguments of one optimizer step other than the gradients."""

    lr: float
    update: int = 0  # counted from 0
    steps_applied: int = 0  # earlier updates that were not skipped
    loss_scale: float = 1.0  # gradients are multiplied by it
    previous_loss_scale: float = 1.0  # at the last update that was not skipped


@dataclass(frozen=True)
class ParamNorms:
    """Euclidean norms of a weight and its gradient."""

    weight: float
    gradient: float


def row_sums_of_squares(values: Tensor) -> Tensor:
    """Sum the squares of each aligned row (16 elements) in fp64."""
    squares = values.to(torch.float64).square_().view(-1, ALIGNMENT)
    return pairwise_sum(squares.t())


def pairwise_sum(rows: Tensor) -> Tensor:
    """Sum over the first dimension by adding the second half to the first until one row is left.

    The order of additions depends only on the number of rows.
    """
    while len(rows) > 1:
        half = -(-len(rows) // 2)
        second = rows[half:]
        rows = torch.cat([rows[: len(second)] + second, rows[len(second) : half]])
    return rows[0]


def euclidean_norms(rows: Tensor) -> ParamNorms:
    """Norms of a weight and its gradient from their row sums of squares: (rows, 2)."""
    weight, gradient = pairwise_sum(rows).tolist()
    return ParamNorms(sqrt(weight), sqrt(gradient))


@dataclass(frozen=True)
class ParameterBlock:
    """A block of fp32 elements with equal settings, to be updated in place."""

    weight: Tensor
    gradient: Tensor  # unscaled, including the rule's weight decay; may be overwritten
    state: Mapping[str, Tensor]
    has_weight_decay: bool
    norms: ParamNorms | None = None  # of the full weight, for layer-adapted rules


VELOCITY = "velocity"
EXP_AVG = "mean"
EXP_AVG_SQ = "mean_square"
BETAS = (0.9, 0.999)  # of AdamW


class UpdateRule(ABC):
    """Updates a block of weights and its state."""

    # Weights whose norms the rule needs; if there are any, no block spans two weights.
    layer_adapted: Collection[str] = ()

    def __init__(self, config: OptimizerConfig) -> None:
        self.momentum = config.momentum
        self.weight_decay = config.weight_decay  # L2 regularization: added to the gradient
        # State slots and their initial values.
        self.slots: Mapping[str, float] = {VELOCITY: 0.0} if config.momentum else {}

    @abstractmethod
    def apply(self, block: ParameterBlock, context: StepContext) -> None:
        """Update the weight and the state in place."""

    def velocity(self, block: ParameterBlock, step: Tensor) -> Tensor:
        """Return momentum · v + step, or the step itself without momentum."""
        if not self.momentum:
            return step
        return block.state[VELOCITY].mul_(self.momentum).add_(step)


class Sgd(UpdateRule):
    """SGD with optional momentum.

    v ← momentum · v + h        w ← w − η · v
    """

    def apply(self, block: ParameterBlock, context: StepContext) -> None:
        block.weight.add_(self.velocity(block, block.gradient), alpha=-context.lr)


class SgdCombined(UpdateRule):
    """SGD whose velocity has the units of the scaled loss.

    S = loss scale ÷ ratio        v ← momentum · v + S · h        w ← w − η/S · v

    A 16-bit velocity then keeps values that would otherwise underflow. It is rescaled when the loss
    scale changes. The velocity is an ordinary state slot, so it can be offloaded or sharded.
    """

    def __init__(self, config: OptimizerConfig) -> None:
        super().__init__(config)
        self.ratio = config.loss_velocity_scaling_ratio

    def apply(self, block: ParameterBlock, context: StepContext) -> None:
        scale = context.loss_scale / self.ratio
        if self.momentum and context.loss_scale != context.previous_loss_scale:
            block.state[VELOCITY].mul_(context.loss_scale / context.previous_loss_scale)
        step = self.velocity(block, block.gradient.mul_(scale))
        block.weight.add_(step, alpha=-context.lr / scale)


class AdamW(UpdateRule):
    """AdamW: Adam with decoupled weight decay.

    m ← β₁ · m + (1 − β₁) · g        s ← β₂ · s + (1 − β₂) · g²        w ← w − η · decay · w
    w ← w − η · m/(1 − β₁ᵗ) ÷ (√(s/(1 − β₂ᵗ)) + ε)        t = updates applied, including this one
    """

    def __init__(self, config: OptimizerConfig) -> None:
        super().__init__(config)
        self.weight_decay, self.decoupled_weight_decay = 0.0, config.weight_decay
        self.slots = {EXP_AVG: 0.0, EXP_AVG_SQ: 0.0}
        self.eps = config.optimizer_eps

    def apply(self, block: ParameterBlock, context: StepContext) -> None:
        beta1, beta2 = BETAS
        exp_avg, exp_avg_sq = block.state[EXP_AVG], block.state[EXP_AVG_SQ]
        exp_avg.mul_(beta1).add_(block.gradient, alpha=1 - beta1)
        _update_square_avg(exp_avg_sq, block.gradient, beta2)
        if self.decoupled_weight_decay and block.has_weight_decay:
            block.weight.mul_(1 - context.lr * self.decoupled_weight_decay)
        correction1, correction2 = (1 - beta ** (context.steps_applied + 1) for beta in BETAS)
        denominator = exp_avg_sq.div(correction2).sqrt_().add_(self.eps)
        block.weight.add_(exp_avg / denominator, alpha=-context.lr / correction1)


class RmsProp(UpdateRule):
    """RMSprop as in torch.

    s ← ρ · s + (1 − ρ) · h²        v ← momentum · v + h/(√s + ε)        w ← w − η · v
    """

    initial_square_avg = 0.0

    def __init__(self, config: OptimizerConfig, smoothing: float) -> None:
        """`smoothing` is ρ."""
        super().__init__(config)
        self.eps = config.optimizer_eps
        self.smoothing = smoothing
        self.slots = {EXP_AVG_SQ: self.initial_square_avg, **self.slots}

    def apply(self, block: ParameterBlock, context: StepContext) -> None:
        squares = _update_square_avg(block.state[EXP_AVG_SQ], block.gradient, self.smoothing)
        step = block.gradient.div_(squares.sqrt().add_(self.eps))
        block.weight.add_(self.velocity(block, step), alpha=-context.lr)


class RmsPropTf(RmsProp):
    """RMSprop as in TensorFlow: s starts at 1, ε is inside the root, the velocity includes η.

    s ← ρ · s + (1 − ρ) · h²        v ← momentum · v + η · h/√(s + ε)        w ← w − v
    """

    initial_square_avg = 1.0

    def apply(self, block: ParameterBlock, context: StepContext) -> None:
        squares = _update_square_avg(block.state[EXP_AVG_SQ], block.gradient, self.smoothing)
        step = block.gradient.div_(squares.add(self.eps).sqrt_()).mul_(context.lr)
        block.weight.sub_(self.velocity(block, step))


class Lars(UpdateRule):
    """LARS: steps proportional to the norm of each weight.

    q = c · ‖w‖ ÷ (‖h‖ + λ · ‖w‖ + ε), or 1 where a norm is 0
    v ← momentum · v + η · q · (h + λ · w)        w ← w − v

    A weight that is not layer-adapted has q = 1 and λ = 0. λ is the weight decay, which then is not
    added to the gradient as well, and is 0 for weights that are exempt from it. If λ is set
    separately, it applies to all layer-adapted weights, as in Graphcore's TensorFlow example.
    """

    def __init__(self, config: OptimizerConfig, layer_adapted: Collection[str]) -> None:
        super().__init__(config)
        self.layer_adapted = frozenset(layer_adapted)
        lars_decay = config.lars_weight_decay
        self.weight_decay = 0.0 if lars_decay is None else config.weight_decay
        self.trust_decay = config.weight_decay if lars_decay is None else lars_decay
        self.has_own_decay = lars_decay is not None
        self.trust_coefficient = config.lars_eeta
        self.eps = config.lars_epsilon

    def apply(self, block: ParameterBlock, context: StepContext) -> None:
        step, trust_ratio = block.gradient, 1.0
        if block.norms is not None:
            decays = block.has_weight_decay or self.has_own_decay
            decay = self.trust_decay if decays else 0.0
            step.add_(block.weight, alpha=decay)
            trust_ratio = self.trust_ratio(block.norms, decay)
        block.weight.sub_(self.velocity(block, step.mul_(context.lr * trust_ratio)))

    def trust_ratio(self, norms: ParamNorms, decay: float) -> float:
        """Return q for λ = `decay`."""
        if not (norms.weight > 0 and norms.gradient > 0):
            return 1.0
        denominator = norms.gradient + decay * norms.weight + self.eps
        return self.trust_coefficient * norms.weight / denominator


def _update_square_avg(average: Tensor, gradient: Tensor, smoothing: float) -> Tensor:
    """Update the running average of squared gradients in place and return it."""
    return average.mul_(smoothing).add_(gradient.square(), alpha=1 - smoothing)


def make_update_rule(
    config: OptimizerConfig, samples_per_update: int, layer_adapted: Collection[str] = ()
) -> UpdateRule:
    """Create the configured rule; `layer_adapted` names the weights that LARS scales."""
    match config.optimizer:
        case "sgd":
            return Sgd(config)
        case "sgd_combined":
            return SgdCombined(config)
        case "adamw":
            return AdamW(config)
        case "lars":
            return Lars(config, layer_adapted)
        case name:
            rms = RmsProp if name == "rmsprop" else RmsPropTf
            return rms(config, rmsprop_smoothing(config, samples_per_update))
