"""Precision and loss scale: what computes, what is stored, how many bytes, what an optimizer keeps
per weight, and the planned loss scale of every update.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from convoy.config.schema import RunConfig
from convoy.config.sections.optimizer import OptimizerConfig
from convoy.config.sections.precision import PrecisionConfig
from convoy.errors import ConfigError
from convoy.text import counted

# Numbers for each weight beside the velocity, which is kept where there is momentum.
_OF_ITS_OWN = {"sgd": 0, "sgd_combined": 0, "adamw": 2, "rmsprop": 1, "rmsprop_tf": 1, "lars": 0}


def slots_of(wish: OptimizerConfig) -> int:
    """How many numbers of state a weight has."""
    velocity = wish.momentum > 0 and wish.optimizer != "adamw"
    return _OF_ITS_OWN[wish.optimizer] + velocity


def share_of_squares_kept(wish: OptimizerConfig, samples_per_update: int) -> float:
    """By rmsprop, of its mean squares, at each update."""
    exponent = wish.rmsprop_base_decay_exp
    if exponent is None or not wish.optimizer.startswith("rmsprop"):
        return wish.rmsprop_decay
    kept = 1 - float(2.0**exponent) * samples_per_update
    if kept < 0:
        raise ConfigError(
            f"--rmsprop-base-decay-exp {exponent:g} gives a decay of 1 − 2^{exponent:g} × "
            f"{samples_per_update:,} samples per update = {kept:g}, below 0; lower it, or give "
            "--rmsprop-decay"
        )
    return kept


WHOLE, HALF = 4, 2  # bytes of a number
_SUMS = {"float64": 8, "float32": WHOLE, "bfloat16": HALF, "float16": HALF}


@dataclass(frozen=True)
class NumberBytes:
    """Bytes of one number of each sort. Weights lie in 32-bit memory, whatever they are."""

    activation: int = WHOLE
    sum: int = WHOLE  # of gradients
    state: int = WHOLE  # of the optimizer, of one weight, a copy of the weight included
    average: int = 0  # that goes along with the weights


def number_bytes(run: RunConfig) -> NumberBytes:
    """What rules say of single parameters is left out: those are few."""
    half = run.precision.precision != "32.32"
    native = half and computes_natively(run.precision, run.device.device)
    kept = HALF if keeps_halves(run.precision) else WHOLE
    wish = run.optimizer.optimizer_state_dtype
    state = {"float32": WHOLE, "weights": kept}.get(wish, HALF)
    copy = WHOLE if half and not keeps_halves(run.precision) else 0
    return NumberBytes(
        activation=HALF if native else WHOLE,
        sum=_SUMS.get(run.memory.accumulator_dtype, kept),
        state=slots_of(run.optimizer) * state + copy,
        average=WHOLE if run.average.ema_decay else 0,
    )


def computes_natively(wish: PrecisionConfig, device: str) -> bool:
    """Whether 16-bit arithmetic is the device's own: where it is fast, unless asked otherwise."""
    if wish.half_arithmetic == "auto":
        return device in ("cuda", "mps")
    return wish.half_arithmetic == "native"


def keeps_halves(wish: PrecisionConfig) -> bool:
    """Whether the true weights are 16-bit numbers."""
    return wish.precision == "16.16" and not wish.offload_fp32_weight_copy


def numbers_as_text(run: RunConfig) -> str:
    """The arithmetic, the rule of updates, and what goes along with them."""
    wish, average = run.precision, run.average.ema_decay
    half = "" if wish.precision == "32.32" else f" in {wish.half_type}"
    by_chance = ", rounded by chance" if wish.enable_stochastic_rounding and half else ""
    kept = f", a running average of {average:g}" if average else ""
    return f"{wish.precision}{half}{by_chance}; {run.optimizer.optimizer}{kept}"


@dataclass(frozen=True)
class Level:
    """One scale, from an update (counted from 0) on."""

    scale: float
    first: int


@dataclass(frozen=True)
class LossScalePlan:
    """The factor of the loss in each update: constant, a ladder, or one that follows the gradients.

    A ladder from I to F = I · 2^(n − 1) has n levels. Level j, I · 2^j, begins j · floor(E / n)
    epochs after the start of a run of E epochs; in a run of fewer epochs than levels, after
    floor(j · T / n) of its T updates.
    """

    first: float = 1.0
    last: float = 1.0  # the first one, doubled some times
    automatic: bool = False
    updates_per_epoch: int = 1
    updates: int = 1

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        count = round(self.last / self.first).bit_length()
        epochs = self.updates // (count * self.updates_per_epoch)  # of one level
        starts = [
            level * epochs * self.updates_per_epoch if epochs else level * self.updates // count
            for level in range(count)
        ]
        return tuple(Level(self.first * 2**level, start) for level, start in enumerate(starts))

    @property
    def is_constant(self) -> bool:
        return len(self.levels) == 1 and not self.automatic

    def scale(self, update: int) -> float:
        """The scale of this update, counted from 0."""
        return next(one.scale for one in reversed(self.levels) if one.first <= update)


UNSCALED = LossScalePlan()


def loss_scale_as_text(plan: LossScalePlan) -> Iterator[str]:
    """Lines of a printed plan; none where the loss is taken as it is."""
    if plan.automatic:
        yield f"scale     {plan.last:,.10g} at first, then as the gradients want it"
    elif plan.is_constant:
        if plan.last != 1:
            yield f"scale     {plan.last:,.10g} times the loss"
    else:
        words = [_level(plan, one) for one in plan.levels]
        yield f"scale     {', '.join(words)}"


def _level(plan: LossScalePlan, level: Level) -> str:
    if level.first == 0:
        return f"{level.scale:,.10g} at first"
    epochs, left = divmod(level.first, plan.updates_per_epoch)
    after = counted(level.first, "update") if left else f"{epochs} epoch{'s' * (epochs > 1)}"
    return f"{level.scale:,.10g} after {after}"
