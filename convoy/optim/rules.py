"""Update rules. w is a weight and η the rate; h is the gradient of the loss, with decay · w where
the weight decays.

Each formula is made of plain sums, products, quotients and roots: of these torch gives the same
bits wherever a vector is cut into blocks.
"""

from collections.abc import Callable, Collection, Mapping

from torch import Tensor

from convoy.config.sections.optimizer import OptimizerConfig
from convoy.optim.lengths import Lengths
from convoy.optim.rule import Block, Rule
from convoy.optim.step import Step
from convoy.plan.optimizer import share_of_squares_kept

VELOCITY = "velocity"
MEAN = "mean"
MEAN_SQUARE = "mean_square"
BETAS = (0.9, 0.999)  # of AdamW: shares of the old mean and of the old mean square that are kept


class Sgd:
    """Gradient descent, with momentum when asked.

    v ← momentum · v + h        w ← w − η · v
    """

    measured = ()

    def __init__(self, config: OptimizerConfig) -> None:
        self.momentum = config.momentum
        self.decay = config.weight_decay
        self.slots: Mapping[str, float] = {VELOCITY: 0.0} if config.momentum else {}

    def move(self, block: Block, at: Step) -> None:
        way = block.gradient
        if self.slots:
            way = block.state[VELOCITY].mul_(self.momentum).add_(way)
        block.weight.add_(way, alpha=-at.rate)


class SgdCombined:
    """Gradient descent whose velocity is kept in the units of the scaled loss.

    S = loss scale ÷ ratio        v ← momentum · v + S · h        w ← w − η/S · v

    A velocity of 16 bits then keeps what would vanish below its smallest number. When the scale has
    changed, what is kept is brought to the new one first. The velocity is a slot like any other, so
    it may lie off the device or be divided over replicas.
    """

    measured = ()

    def __init__(self, config: OptimizerConfig) -> None:
        self.momentum = config.momentum
        self.decay = config.weight_decay
        self.ratio = config.loss_velocity_scaling_ratio
        self.slots: Mapping[str, float] = {VELOCITY: 0.0} if config.momentum else {}

    def move(self, block: Block, at: Step) -> None:
        scale = at.scale / self.ratio
        way = block.gradient.mul_(scale)
        if self.slots:
            velocity = block.state[VELOCITY]
            if at.scale != at.scale_before:
                velocity.mul_(at.scale / at.scale_before)
            way = velocity.mul_(self.momentum).add_(way)
        block.weight.add_(way, alpha=-at.rate / scale)


class AdamW:
    """Means of gradients over the roots of their mean squares; decay of its own.

    m ← β₁ · m + (1 − β₁) · g        s ← β₂ · s + (1 − β₂) · g²        w ← w − η · decay · w
    w ← w − η · m/(1 − β₁ᵗ) ÷ (√(s/(1 − β₂ᵗ)) + ε)        t = updates that were applied, this too
    """

    measured = ()
    decay = 0.0  # in the gradient
    slots: Mapping[str, float] = {MEAN: 0.0, MEAN_SQUARE: 0.0}

    def __init__(self, config: OptimizerConfig) -> None:
        self.own_decay = config.weight_decay
        self.eps = config.optimizer_eps

    def move(self, block: Block, at: Step) -> None:
        kept, squares_kept = BETAS
        mean, squares = block.state[MEAN], block.state[MEAN_SQUARE]
        mean.mul_(kept).add_(block.gradient, alpha=1 - kept)
        _take_squares(squares, block.gradient, squares_kept)
        if self.own_decay and block.decays:
            block.weight.mul_(1 - at.rate * self.own_decay)
        seen, squares_seen = (1 - beta ** (at.applied + 1) for beta in BETAS)
        spread = squares.div(squares_seen).sqrt_().add_(self.eps)
        block.weight.add_(mean / spread, alpha=-at.rate / seen)


class RmsProp:
    """Steps of about the same size everywhere, as torch has them.

    s ← ρ · s + (1 − ρ) · h²        v ← momentum · v + h/(√s + ε)        w ← w − η · v
    """

    measured = ()
    first_square = 0.0

    def __init__(self, config: OptimizerConfig, kept: float) -> None:
        """`kept` is ρ."""
        self.momentum = config.momentum
        self.decay = config.weight_decay
        self.eps = config.optimizer_eps
        self.kept = kept
        velocity = {VELOCITY: 0.0} if config.momentum else {}
        self.slots: Mapping[str, float] = {MEAN_SQUARE: self.first_square, **velocity}

    def move(self, block: Block, at: Step) -> None:
        squares = _take_squares(block.state[MEAN_SQUARE], block.gradient, self.kept)
        way = block.gradient.div_(squares.sqrt().add_(self.eps))
        if VELOCITY in self.slots:
            way = block.state[VELOCITY].mul_(self.momentum).add_(way)
        block.weight.add_(way, alpha=-at.rate)


class RmsPropTf(RmsProp):
    """The same as TensorFlow has it: s begins at 1, ε is under the root, the velocity holds rates.

    s ← ρ · s + (1 − ρ) · h²        v ← momentum · v + η · h/√(s + ε)        w ← w − v
    """

    first_square = 1.0

    def move(self, block: Block, at: Step) -> None:
        squares = _take_squares(block.state[MEAN_SQUARE], block.gradient, self.kept)
        way = block.gradient.div_(squares.add(self.eps).sqrt_()).mul_(at.rate)
        if VELOCITY in self.slots:
            way = block.state[VELOCITY].mul_(self.momentum).add_(way)
        block.weight.sub_(way)


class Lars:
    """Steps in proportion to the length of each weight.

    q = c · ‖w‖ ÷ (‖h‖ + λ · ‖w‖ + ε), or 1 where a length is 0
    v ← momentum · v + η · q · (h + λ · w)        w ← w − v

    A weight that is not measured has q = 1 and λ = 0. Decay acts in one place: as λ, unless λ has a
    value of its own.
    """

    def __init__(self, config: OptimizerConfig, measured: Collection[str]) -> None:
        self.measured = frozenset(measured)
        self.momentum = config.momentum
        own = config.lars_weight_decay
        self.decay = 0.0 if own is None else config.weight_decay
        self.inner_decay = config.weight_decay if own is None else own
        self.trust = config.lars_eeta
        self.eps = config.lars_epsilon
        self.slots: Mapping[str, float] = {VELOCITY: 0.0} if config.momentum else {}

    def move(self, block: Block, at: Step) -> None:
        way, ratio = block.gradient, 1.0
        if block.lengths is not None:
            way.add_(block.weight, alpha=self.inner_decay)
            ratio = self.ratio(block.lengths)
        way.mul_(at.rate * ratio)
        if self.slots:
            way = block.state[VELOCITY].mul_(self.momentum).add_(way)
        block.weight.sub_(way)

    def ratio(self, found: Lengths) -> float:
        """The q of a weight."""
        if not (found.weight > 0 and found.gradient > 0):
            return 1.0
        below = found.gradient + self.inner_decay * found.weight + self.eps
        return self.trust * found.weight / below


def _take_squares(mean: Tensor, gradient: Tensor, kept: float) -> Tensor:
    """The mean square after a gradient has come."""
    return mean.mul_(kept).add_(gradient.square(), alpha=1 - kept)


def rule_of(
    config: OptimizerConfig, samples_per_update: int, measured: Collection[str] = ()
) -> Rule:
    """The rule that the configuration names; `measured` are the weights that LARS scales."""
    kept = share_of_squares_kept(config, samples_per_update)
    rules: dict[str, Callable[[], Rule]] = {
        "sgd": lambda: Sgd(config),
        "sgd_combined": lambda: SgdCombined(config),
        "adamw": lambda: AdamW(config),
        "rmsprop": lambda: RmsProp(config, kept),
        "rmsprop_tf": lambda: RmsPropTf(config, kept),
        "lars": lambda: Lars(config, measured),
    }
    return rules[config.optimizer]()
