"""What the wish for a precision means: what computes, what is kept, and how many bytes it takes."""

from dataclasses import dataclass

from convoy.config.schema import RunConfig
from convoy.config.sections.optimizer import PrecisionConfig
from convoy.plan.optimizer import slots_of

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
