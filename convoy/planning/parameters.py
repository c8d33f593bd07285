"""Parameters by name: which are frozen or trained, which a pattern selects, and their bytes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from convoy.config.option import format_value
from convoy.config.resolve import DTYPE_RULES_FLAG, MEAN_REDUCE_FLAG, split_dtype_rule
from convoy.config.schema import Problem, RunConfig, raise_problems
from convoy.config.sections.precision import PrecisionConfig
from convoy.config.sections.training import OptimizerConfig
from convoy.errors import ConfigError
from convoy.models.layers import (
    ConvSpec,
    LayerPlan,
    LinearSpec,
    ModuleSpec,
    NormSpec,
    OpSpec,
    ProxyActivationSpec,
    ProxySqueezeExciteSpec,
)
from convoy.planning.activations import FP16_BYTES, FP32_BYTES
from convoy.planning.stages import split_targets, with_aliases
from convoy.registry import near_names, suggest


@dataclass(frozen=True)
class ParameterSpec:
    """Name and size of a parameter."""

    name: str
    elements: int
    alias: str = ""  # name in other frameworks

    @property
    def searchable_name(self) -> str:
        """Name and alias, for substring search."""
        return f"{self.name} {self.alias}" if self.alias else self.name


def parameters_of(layer: LayerPlan) -> list[ParameterSpec]:
    """All parameters of a layer."""
    return [*_parameter_specs(layer.name.replace("/", "."), layer.operation)]


def _parameter_specs(name: str, operation: OpSpec) -> Iterator[ParameterSpec]:
    match operation:
        case ConvSpec() | LinearSpec():
            biases = operation.outputs if isinstance(operation, LinearSpec) or operation.bias else 0
            yield ParameterSpec(f"{name}.weight", operation.parameters - biases)
            if biases:
                yield ParameterSpec(f"{name}.bias", biases)
        case NormSpec():
            if operation.scale:
                yield ParameterSpec(f"{name}.weight", operation.channels, "gamma")
            if operation.offset:
                yield ParameterSpec(f"{name}.bias", operation.channels, "beta")
        case ProxyActivationSpec():
            yield ParameterSpec(f"{name}.weight", operation.channels, "gamma")
            yield ParameterSpec(f"{name}.bias", operation.channels, "beta")
            yield ParameterSpec(f"{name}.proxy", 2 * operation.channels, "proxy")
        case ProxySqueezeExciteSpec():
            yield from _parameter_specs(f"{name}.act", operation.proxy)
            yield from _parameter_specs(f"{name}.conv_reduce", operation.reduce)
            yield from _parameter_specs(f"{name}.conv_expand", operation.expand)
        case ModuleSpec(parameter_sizes=sizes):
            yield from (ParameterSpec(f"{name}.{short_name}", count) for short_name, count in sizes)
        case _:
            assert not operation.parameters, f"the parameters of {name} have no names"


def parameter_names(layers: Iterable[LayerPlan]) -> list[str]:
    """Parameter names in layer order: `layer1.0.conv1.weight`, …"""
    return [param.name for layer in layers for param in parameters_of(layer)]


def trained_parameters(
    layers: Sequence[LayerPlan], frozen: int, parts: Sequence[str]
) -> tuple[int, ...]:
    """Number of trained parameters of each layer; the first `frozen` layers have none."""
    counts = [
        sum(
            param.elements
            for param in parameters_of(layer)
            if not parts or any(part in param.searchable_name for part in parts)
        )
        for layer in layers
    ]
    counts[:frozen] = [0] * frozen
    if parts and not any(counts):
        example = next(param.name for layer in layers[frozen:] for param in parameters_of(layer))
        raise ConfigError(
            f"--variable-filter {format_value(tuple(parts))} leaves nothing to train: it matches "
            f"no parameter name; names look like {example}"
        )
    return tuple(counts)


_NORM_ALIASES = ("gamma", "beta", "proxy")  # running statistics are called `moving_…`


def check_parameter_patterns(config: RunConfig, layers: Iterable[LayerPlan]) -> None:
    """Refuse patterns that match no parameter."""
    names, precision = parameter_names(layers), config.precision
    raise_problems(
        [
            *_unmatched_mean_patterns(config.optimizer.gradient_mean_reduce_re, names),
            *_unmatched_dtype_rules(config.memory.accumulator_dtype_rules, names),
            *_unmatched_parts("--force-weight-to-fp16", precision.force_weight_to_fp16, names),
            *_unmatched_parts("--force-weight-to-fp32", precision.force_weight_to_fp32, names),
        ]
    )


def _unmatched_parts(flag: str, parts: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    for part in parts:
        if not any(part in name for name in (*names, *_NORM_ALIASES)) and "moving_" not in part:
            yield Problem(flag, _unmatched_message(part, names))


def _unmatched_mean_patterns(patterns: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    for pattern in patterns:
        if not any(map(re.compile(pattern).fullmatch, names)):
            yield Problem(MEAN_REDUCE_FLAG, _unmatched_message(pattern, names))


def _unmatched_dtype_rules(rules: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    unmatched = set(names)  # not matched by an earlier rule
    for rule in rules:
        pattern, _ = split_dtype_rule(rule)
        matches = {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            yield Problem(DTYPE_RULES_FLAG, _unmatched_message(pattern, names))
        elif not matches & unmatched:
            text = f"{rule!r} has no effect: earlier rules match the same parameters"
            yield Problem(DTYPE_RULES_FLAG, f"{text}, and the first match applies")
        unmatched -= matches


def _unmatched_message(pattern: str, names: Sequence[str]) -> str:
    near = near_names(pattern, names)
    hint = f"did you mean {', '.join(near)}?" if near else f"use a name such as {names[0]}"
    return f"{pattern!r} matches no parameter of this model; {hint}"


FIRST_TRAINABLE_OPTION = "--fine-tune-first-trainable-layer"


def frozen_layers(layers: Sequence[LayerPlan], first_trainable: str | None) -> int:
    """Number of layers before the first trained one."""
    if first_trainable is None:
        return 0
    names = [layer.name for layer in layers]
    indices = split_targets(names)
    first = with_aliases(names, indices).get(first_trainable)
    if first is None:
        raise ConfigError(
            f"{FIRST_TRAINABLE_OPTION} {first_trainable!r} is not a layer of this model; "
            f"{suggest(first_trainable, indices)}"
        )
    weighted = (index for index in range(first, len(layers)) if layers[index].operation.parameters)
    trained = next(weighted, None)
    if trained is None:
        last = next(layer for layer in reversed(layers) if layer.operation.parameters)
        raise ConfigError(
            f"{FIRST_TRAINABLE_OPTION} {first_trainable!r} leaves nothing to train: no layer "
            f"from there on has parameters; the last one that does is {last.name}"
        )
    return trained


# State values per weight besides the velocity, which exists if there is momentum.
_STATE_SLOTS = {"sgd": 0, "sgd_combined": 0, "adamw": 2, "rmsprop": 1, "rmsprop_tf": 1, "lars": 0}


def num_state_slots(config: OptimizerConfig) -> int:
    """Number of optimizer state values per weight."""
    velocity = config.momentum > 0 and config.optimizer != "adamw"
    return _STATE_SLOTS[config.optimizer] + velocity


def rmsprop_smoothing(config: OptimizerConfig, samples_per_update: int) -> float:
    """The smoothing constant ρ of RMSprop."""
    exponent = config.rmsprop_base_decay_exp
    if exponent is None or not config.optimizer.startswith("rmsprop"):
        return config.rmsprop_decay
    smoothing = 1 - float(2.0**exponent) * samples_per_update
    if smoothing < 0:
        raise ConfigError(
            f"--rmsprop-base-decay-exp {exponent:g} gives a decay of 1 − 2^{exponent:g} × "
            f"{samples_per_update:,} samples per update = {smoothing:g}, below 0; lower it, or use "
            "--rmsprop-decay"
        )
    return smoothing


@dataclass(frozen=True)
class ElementBytes:
    """Bytes per element. Weights always occupy fp32 memory."""

    activation: int = FP32_BYTES
    accumulator: int = FP32_BYTES  # of gradients
    state: int = FP32_BYTES  # of the optimizer, per weight, including a master copy
    ema: int = 0  # per weight


def element_bytes(run: RunConfig) -> ElementBytes:
    """Compute the bytes per element; rules for single parameters are ignored."""
    half = run.precision.precision != "32.32"
    native = half and uses_native_half(run.precision, run.device.device)
    stored = FP16_BYTES if stores_half_weights(run.precision) else FP32_BYTES
    sizes = {"auto": stored, "weights": stored, "float64": 8, "float32": FP32_BYTES}
    state = sizes.get(run.optimizer.optimizer_state_dtype, FP16_BYTES)
    copy = FP32_BYTES if half and not stores_half_weights(run.precision) else 0
    return ElementBytes(
        activation=FP16_BYTES if native else FP32_BYTES,
        accumulator=sizes.get(run.memory.accumulator_dtype, FP16_BYTES),
        state=num_state_slots(run.optimizer) * state + copy,
        ema=FP32_BYTES if run.average.ema_decay else 0,
    )


def uses_native_half(config: PrecisionConfig, device: str) -> bool:
    """Whether 16-bit arithmetic is native rather than emulated; by default where it is fast."""
    if config.half_arithmetic == "auto":
        return device in ("cuda", "mps")
    return config.half_arithmetic == "native"


def stores_half_weights(config: PrecisionConfig) -> bool:
    """Whether the master weights are stored in 16 bits."""
    return config.precision == "16.16" and not config.offload_fp32_weight_copy
