"""Twenty updates of each update rule against its formula in float64 and against torch."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.small_weights import RATES, SHAPES, flattened, gradients, weights
from torch import nn

from convoy.config.sections.training import OptimizerConfig
from convoy.errors import ConfigError
from convoy.numerics.flat import FlatParameters
from convoy.numerics.precision import FLOAT_FORMATS, DtypePolicy
from convoy.optim.optimizer import Optimizer, OptimizerShard
from convoy.optim.update_rules import Lars, ParamNorms, StepContext, make_update_rule

Array = npt.NDArray[np.float64]
SAMPLES = 4096  # per update
OPTIMIZERS = ("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars")
SCALED = ("conv.weight", "fc.weight")  # weights with a LARS trust ratio
# Larger than usual, so that a wrong use of any value shows.
CONFIG = OptimizerConfig(
    weight_decay=0.05, optimizer_eps=0.02, rmsprop_decay=0.8, lars_eeta=0.3, lars_epsilon=0.1
)


def config_of(optimizer: str, momentum: float = 0.9) -> OptimizerConfig:
    return replace(CONFIG, optimizer=optimizer, momentum=momentum)


def make_optimizer(
    named: dict[str, nn.Parameter],
    config: OptimizerConfig,
    shard: OptimizerShard | None = None,
    scaled: Collection[str] = SCALED,
) -> Optimizer:
    return Optimizer(FlatParameters(named), make_update_rule(config, SAMPLES, scaled), shard)


@dataclass
class ReferenceState:
    """A weight and its state in float64."""

    w: Array
    m: Array
    s: Array
    decay: float  # weight decay of this weight
    scaled: bool


@dataclass(frozen=True)
class ReferenceStep:
    """The inputs of an update."""

    g: Array  # gradient of the scaled loss
    rate: float
    scale: float
    count: int  # from 1


Formula = Callable[[ReferenceState, ReferenceStep, OptimizerConfig], None]


def sgd(x: ReferenceState, step: ReferenceStep, c: OptimizerConfig) -> None:
    h = step.g / step.scale + x.decay * x.w
    x.m = c.momentum * x.m + h
    x.w = x.w - step.rate * x.m


def adamw(x: ReferenceState, step: ReferenceStep, c: OptimizerConfig) -> None:
    h = step.g / step.scale
    x.m = 0.9 * x.m + 0.1 * h
    x.s = 0.999 * x.s + 0.001 * h**2
    mean, square = x.m / (1 - 0.9**step.count), x.s / (1 - 0.999**step.count)
    x.w = x.w - step.rate * x.decay * x.w - step.rate * mean / (np.sqrt(square) + c.optimizer_eps)


def rmsprop(x: ReferenceState, step: ReferenceStep, c: OptimizerConfig) -> None:
    h = step.g / step.scale + x.decay * x.w
    x.s = c.rmsprop_decay * x.s + (1 - c.rmsprop_decay) * h**2
    x.m = c.momentum * x.m + h / (np.sqrt(x.s) + c.optimizer_eps)
    x.w = x.w - step.rate * x.m


def rmsprop_tf(x: ReferenceState, step: ReferenceStep, c: OptimizerConfig) -> None:
    h = (step.g + step.scale * x.decay * x.w) / step.scale
    before = np.ones_like(x.s) if step.count == 1 else x.s
    x.s = before + (1 - c.rmsprop_decay) * (h**2 - before)
    x.m = c.momentum * x.m + step.rate * h / np.sqrt(x.s + c.optimizer_eps)
    x.w = x.w - x.m


def lars(x: ReferenceState, step: ReferenceStep, c: OptimizerConfig) -> None:
    lars_decay = c.lars_weight_decay
    inner = c.weight_decay if lars_decay is None else lars_decay
    h = step.g / step.scale + (0 if lars_decay is None else x.decay) * x.w
    q = 1.0
    if x.scaled:
        weight_norm, gradient_norm = np.linalg.norm(x.w), np.linalg.norm(h)
        inner = inner if x.decay or lars_decay is not None else 0.0
        if weight_norm > 0 and gradient_norm > 0:
            q = c.lars_eeta * weight_norm / (gradient_norm + inner * weight_norm + c.lars_epsilon)
        h = h + inner * x.w
    x.m = c.momentum * x.m + step.rate * q * h
    x.w = x.w - x.m


FORMULAS: dict[str, Formula] = {
    "sgd": sgd,
    "sgd_combined": sgd,  # the same formula in other units
    "adamw": adamw,
    "rmsprop": rmsprop,
    "rmsprop_tf": rmsprop_tf,
    "lars": lars,
}


def reference_weights(
    config: OptimizerConfig, scales: list[float], scaled: Collection[str] = SCALED
) -> dict[str, Array]:
    """The weights after twenty updates."""
    states = {}
    for name, weight in weights().items():
        w = weight.detach().double().numpy()
        decay = config.weight_decay if w.ndim > 1 else 0.0
        states[name] = ReferenceState(w, np.zeros_like(w), np.zeros_like(w), decay, name in scaled)
    for update, (rate, scale) in enumerate(zip(RATES, scales, strict=True)):
        for state, gradient in zip(states.values(), gradients(update), strict=True):
            step = ReferenceStep(gradient.double().numpy() * scale, rate, scale, update + 1)
            FORMULAS[config.optimizer](state, step, config)
    return {name: state.w for name, state in states.items()}


def run_updates(optimizer: Optimizer, scales: list[float]) -> None:
    before = scales[0]
    for update, (rate, scale) in enumerate(zip(RATES, scales, strict=True)):
        gradient = flattened(optimizer, update, scale)
        optimizer.step(gradient, StepContext(rate, update, update, scale, before))
        before = scale


def max_difference(actual: dict[str, nn.Parameter], expected: dict[str, Array]) -> float:
    pairs = ((actual[name].detach().double().numpy(), item) for name, item in expected.items())
    return max(float(np.abs(item - other).max()) for item, other in pairs)


CONSTANT = [1.0] * 20
RISING = [2.0 ** (update // 4) for update in range(20)]
VARYING = [1.0 + 0.7 * (update % 3) for update in range(20)]


@pytest.mark.parametrize(
    "scales", [CONSTANT, RISING, VARYING], ids=["constant", "rising", "varying"]
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_twenty_updates_follow_the_formula(
    optimizer: str, momentum: float, scales: list[float]
) -> None:
    config, named = config_of(optimizer, momentum), weights()
    run_updates(make_optimizer(named, config), scales)
    expected = reference_weights(config, scales)

    assert max_difference(weights(), expected) > 0.5
    assert max_difference(named, expected) < 2e-5


def test_both_weight_decays_of_lars_follow_the_formula() -> None:
    config, named = replace(config_of("lars"), lars_weight_decay=0.2), weights()
    run_updates(make_optimizer(named, config), VARYING)

    assert max_difference(named, reference_weights(config, VARYING)) < 2e-5


@pytest.mark.parametrize("lars_decay", [None, 0.2])
def test_weights_without_decay_that_lars_scales_follow_the_formula(
    lars_decay: float | None,
) -> None:
    """With an empty skip list, LARS scales the vectors too; only its own decay applies to them."""
    config, named = replace(config_of("lars"), lars_weight_decay=lars_decay), weights()
    run_updates(make_optimizer(named, config, scaled=SHAPES), VARYING)

    assert max_difference(named, reference_weights(config, VARYING, scaled=SHAPES)) < 2e-5


@pytest.mark.parametrize(("spares", "moves"), [("vectors", False), ("nothing", True)])
def test_lars_does_not_decay_the_weights_that_are_spared(spares: str, moves: bool) -> None:
    """Without gradients, only weight decay moves a weight."""
    weight = nn.Parameter(torch.full((16,), 2.0))
    exempt = None if spares == "vectors" else set()
    rule = Lars(replace(config_of("lars"), momentum=0.0), ("bn.weight",))
    optimizer = Optimizer(FlatParameters({"bn.weight": weight}, exempt), rule)
    optimizer.step(torch.zeros(16), StepContext(0.5))

    assert bool((weight != 2.0).any()) is moves


def test_the_rmsprop_decay_may_depend_on_the_samples_of_an_update() -> None:
    config = replace(config_of("rmsprop_tf"), rmsprop_base_decay_exp=-14.0)
    named = weights()
    run_updates(make_optimizer(named, config), CONSTANT)
    resolved = replace(config, rmsprop_decay=1 - 4096 / 16384)  # 1 − 2^−14 × 4096

    assert max_difference(named, reference_weights(resolved, CONSTANT)) < 2e-5


def test_a_negative_rmsprop_decay_is_refused_with_the_formula() -> None:
    config = replace(config_of("rmsprop"), rmsprop_base_decay_exp=-11.0)

    with pytest.raises(ConfigError, match=r"1 − 2\^-11 × 4,096 samples per update = -1, below 0"):
        make_update_rule(config, SAMPLES)


def test_adamw_corrects_its_bias_by_the_updates_that_were_applied() -> None:
    """Of ten updates, eight were skipped."""
    skipped, applied = weights(), weights()
    for named, update in ((skipped, 9), (applied, 1)):
        optimizer = make_optimizer(named, config_of("adamw"))
        context = StepContext(0.1, update=update, steps_applied=1)
        optimizer.step(flattened(optimizer, 0), context)

    assert all(torch.equal(skipped[name], applied[name]) for name in SHAPES)


@pytest.mark.parametrize("name", ["sgd", "sgd_combined", "adamw", "lars"])
def test_other_rules_ignore_the_rmsprop_exponent(name: str) -> None:
    config = config_of(name)
    rule = make_update_rule(replace(config, rmsprop_base_decay_exp=-1.0), SAMPLES)

    assert vars(rule) == vars(make_update_rule(config, SAMPLES))


def torch_optimizer(
    named: dict[str, nn.Parameter], config: OptimizerConfig
) -> torch.optim.Optimizer:
    values = list(named.values())
    groups = [
        {
            "params": [value for value in values if value.dim() > 1],
            "weight_decay": config.weight_decay,
        },
        {"params": [value for value in values if value.dim() == 1], "weight_decay": 0.0},
    ]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, eps=config.optimizer_eps)
    alpha, momentum = config.rmsprop_decay, config.momentum
    return torch.optim.RMSprop(groups, alpha=alpha, eps=config.optimizer_eps, momentum=momentum)


@pytest.mark.parametrize(
    "config", [config_of("adamw"), config_of("rmsprop"), config_of("rmsprop", 0.0)]
)
def test_twenty_updates_match_torch_up_to_the_last_bits(config: OptimizerConfig) -> None:
    """torch fuses some operations that convoy computes separately."""
    actual, theirs = weights(), weights()
    run_updates(make_optimizer(actual, config), CONSTANT)
    reference = torch_optimizer(theirs, config)
    for update, rate in enumerate(RATES):
        for weight, gradient in zip(theirs.values(), gradients(update), strict=True):
            weight.grad = gradient
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()

    differences = [(actual[name] - theirs[name]).abs().max().item() for name in SHAPES]
    assert max(differences) < 3e-6


def test_a_power_of_two_loss_scale_gives_the_bits_of_sgd() -> None:
    plain, combined = weights(), weights()
    config = replace(config_of("sgd_combined"), loss_velocity_scaling_ratio=0.25)
    run_updates(make_optimizer(plain, config_of("sgd")), RISING)
    run_updates(make_optimizer(combined, config), RISING)

    assert all(torch.equal(plain[name], combined[name]) for name in SHAPES)


def test_the_velocity_of_sgd_combined_has_the_units_of_the_scaled_loss() -> None:
    plain = make_optimizer(weights(), config_of("sgd"))
    ratio = replace(config_of("sgd_combined"), loss_velocity_scaling_ratio=4.0)
    combined = make_optimizer(weights(), ratio)
    for update, (scale, before) in enumerate([(128.0, 128.0), (256.0, 128.0)]):
        context = StepContext(0.1, update, update, scale, before)
        plain.step(flattened(plain, update, scale), context)
        combined.step(flattened(combined, update, scale), context)

        assert torch.equal(combined.slots["velocity"], plain.slots["velocity"] * (scale / 4))


def test_only_a_scaled_16_bit_velocity_preserves_small_gradients() -> None:
    policy, context = (
        DtypePolicy(state=FLOAT_FORMATS["float16"]),
        StepContext(0.1, loss_scale=1024.0, previous_loss_scale=1024.0),
    )
    is_preserved = {}
    for optimizer in ("sgd", "sgd_combined"):
        flat = FlatParameters(weights())
        item = Optimizer(flat, make_update_rule(config_of(optimizer), SAMPLES), policy=policy)
        flat.values.zero_()
        item.step(torch.full_like(flat.values, 1e-8 * 1024), context)
        is_preserved[optimizer] = bool(item.slots["velocity"].any())

    assert is_preserved == {"sgd": False, "sgd_combined": True}


@pytest.mark.parametrize(
    ("weight", "gradient", "ratio"), [(0.0, 2.0, 1.0), (2.0, 0.0, 1.0), (3.0, 0.5, 0.3 * 3 / 0.75)]
)
def test_the_trust_ratio_of_lars_is_one_if_a_norm_is_zero(
    weight: float, gradient: float, ratio: float
) -> None:
    rule = Lars(config_of("lars"), SCALED)

    assert rule.trust_ratio(ParamNorms(weight, gradient), rule.trust_decay) == pytest.approx(ratio)


def test_lars_updates_a_weight_of_zeros() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = Optimizer(FlatParameters({"conv.weight": weight}), Lars(config_of("lars"), SCALED))
    optimizer.step(torch.ones(16), StepContext(0.5))

    assert (weight == -0.5).all()
