"""The parameters of a network by name: which are frozen or trained, and which a pattern selects."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from convoy.config.option import spelled
from convoy.config.resolve import MEANS, TYPES, divided_rule
from convoy.config.schema import RunConfig
from convoy.config.sections.optimizer import OptimizerConfig
from convoy.config.sections.precision import PrecisionConfig
from convoy.config.settings import Problem, refuse
from convoy.errors import ConfigError
from convoy.models.layers import (
    ConvSpec,
    LayerPlan,
    LinearSpec,
    NormSpec,
    Operation,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
)
from convoy.plan.activations import HALF, WHOLE
from convoy.plan.stages import groups_of, place_of
from convoy.registry import near_names, suggest


@dataclass(frozen=True)
class Weight:
    """A parameter, before it exists."""

    name: str
    elements: int
    word: str = ""  # what other programs call it

    @property
    def full_name(self) -> str:
        """All that it may be called."""
        return f"{self.name} {self.word}" if self.word else self.name


def weights_of(layer: LayerPlan) -> list[Weight]:
    """All of a layer."""
    return [*_weights(layer.name.replace("/", "."), layer.operation)]


def _weights(name: str, operation: Operation) -> Iterator[Weight]:
    match operation:
        case ConvSpec() | LinearSpec():
            biases = operation.outputs if isinstance(operation, LinearSpec) or operation.bias else 0
            yield Weight(f"{name}.weight", operation.parameters - biases)
            if biases:
                yield Weight(f"{name}.bias", biases)
        case NormSpec():
            if operation.scale:
                yield Weight(f"{name}.weight", operation.channels, "gamma")
            if operation.offset:
                yield Weight(f"{name}.bias", operation.channels, "beta")
        case ProxyActivationSpec():
            yield Weight(f"{name}.weight", operation.channels, "gamma")
            yield Weight(f"{name}.bias", operation.channels, "beta")
            yield Weight(f"{name}.proxy", 2 * operation.channels, "proxy")
        case ProxySqueezeExciteSpec():
            yield from _weights(f"{name}.act", operation.proxy)
            yield from _weights(f"{name}.conv_reduce", operation.reduce)
            yield from _weights(f"{name}.conv_expand", operation.expand)
        case _:
            assert not operation.parameters, f"the weights of {name} have no names"


def parameter_names(layers: Iterable[LayerPlan]) -> list[str]:
    """In the order of the layers: `layer1.0.conv1.weight`, …"""
    return [weight.name for layer in layers for weight in weights_of(layer)]


def trained_parameters(
    layers: Sequence[LayerPlan], frozen: int, parts: Sequence[str]
) -> tuple[int, ...]:
    """How many of each layer change, if the first ones are frozen."""
    counts = [
        sum(
            weight.elements
            for weight in weights_of(layer)
            if not parts or any(part in weight.full_name for part in parts)
        )
        for layer in layers
    ]
    counts[:frozen] = [0] * frozen
    if parts and not any(counts):
        some = next(one.name for layer in layers[frozen:] for one in weights_of(layer))
        raise ConfigError(
            f"--variable-filter {spelled(tuple(parts))} leaves nothing to train: no weight has "
            f"that in its name; they are called like {some}"
        )
    return tuple(counts)


_WORDS = ("gamma", "beta", "proxy")  # of a norm's weights; its running statistics are `moving_`


def refuse_idle_patterns(config: RunConfig, layers: Iterable[LayerPlan]) -> None:
    """What was asked for no parameter was asked in vain."""
    means, types = config.optimizer.gradient_mean_reduce_re, config.memory.accumulator_dtype_rules
    wish = config.precision
    parts = {
        "--force-weight-to-fp16": wish.force_weight_to_fp16,
        "--force-weight-to-fp32": wish.force_weight_to_fp32,
    }
    if means or types or any(parts.values()):
        names = parameter_names(layers)
        refuse([*_idle_means(means, names), *_idle_types(types, names), *_idle_parts(parts, names)])


def _idle_parts(parts: Mapping[str, Sequence[str]], names: Sequence[str]) -> Iterator[Problem]:
    for flag, given in parts.items():
        for part in given:
            if not any(part in name for name in (*names, *_WORDS)) and "moving_" not in part:
                yield Problem(flag, _matches_nothing(part, names))


def _idle_means(patterns: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    for pattern in patterns:
        if not any(map(re.compile(pattern).fullmatch, names)):
            yield Problem(MEANS, _matches_nothing(pattern, names))


def _idle_types(rules: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    left = set(names)  # of which no rule has spoken yet
    for text in rules:
        pattern, _ = divided_rule(text)
        chosen = {name for name in names if fnmatchcase(name, pattern)}
        if not chosen:
            yield Problem(TYPES, _matches_nothing(pattern, names))
        elif not chosen & left:
            text = f"{text!r} never holds: the rules before it speak of the same parameters"
            yield Problem(TYPES, f"{text}, and the first that fits wins")
        left -= chosen


def _matches_nothing(pattern: str, names: Sequence[str]) -> str:
    near = near_names(pattern, names)
    way_out = f"did you mean {', '.join(near)}?" if near else f"a whole name is one: {names[0]}"
    return f"{pattern!r} matches no parameter of this model; {way_out}"


OPTION = "--fine-tune-first-trainable-layer"


def frozen_layers(layers: Sequence[LayerPlan], wish: str | None) -> int:
    """How many layers come before the first one whose weights change."""
    if wish is None:
        return 0
    names = [layer.name for layer in layers]
    first = place_of(names, wish)
    if first is None:
        known = {*names, *(group for name in names for group in groups_of(name))}
        raise ConfigError(f"{OPTION} {wish!r} is no layer of this model; {suggest(wish, known)}")
    weighted = (at for at in range(first, len(layers)) if layers[at].operation.parameters)
    trained = next(weighted, None)
    if trained is None:
        last = next(layer for layer in reversed(layers) if layer.operation.parameters)
        raise ConfigError(
            f"{OPTION} {wish!r} leaves nothing to train: no layer from there on has weights; "
            f"the last one that has is {last.name}"
        )
    return trained


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
