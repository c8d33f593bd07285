"""The kind of numbers of weights and of the layers' arithmetic, as the configuration wants it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from convoy.assemble.network import Network
from convoy.assemble.roles import full_names
from convoy.assemble.sums import sums_of
from convoy.config.schema import RunConfig
from convoy.numerics.arithmetic import Arithmetic
from convoy.numerics.kinds import Kind
from convoy.numerics.types import FLOAT32, TYPES, NumberType
from convoy.parallel.slice import Slice
from convoy.plan.precision import computes_natively
from convoy.plan.stages import StagePlan

Weights = Mapping[str, nn.Parameter]


def arithmetic_of(config: RunConfig, device: torch.device) -> Arithmetic:
    """How layers compute there."""
    wish = config.precision
    number = FLOAT32 if wish.precision == "32.32" else TYPES[wish.half_type]
    native = computes_natively(wish, device.type)
    partials = wish.half_partial and wish.half_arithmetic == "emulated"
    return Arithmetic(number, native, wish.saturate_on_overflow, partials)


def compute_in(
    config: RunConfig, network: Network, device: torch.device, stages: Sequence[StagePlan]
) -> Network:
    """The same network, which computes as the configuration wants it."""
    arithmetic = arithmetic_of(config, device)
    for layers, stage in zip(network.slices, stages, strict=True):
        layers.compute_in(arithmetic, takes_images=stage.first == 0)
    return network


@torch.no_grad()
def round_weights(config: RunConfig, network: Network) -> None:
    """Weights of a network that only answers: as they are used."""
    for layers in network.slices:
        types = WeightTypes.of(config, layers)
        for name, weight in layers.named_weights().items():
            weight.copy_(types.kind(name).used.nearest(weight))


def by_kind(config: RunConfig, layers: Slice) -> dict[Kind, Weights]:
    """In the order in which the kinds come first; a stage without weights has one of nothing."""
    weights, types = layers.named_weights(), WeightTypes.of(config, layers)
    groups: dict[Kind, dict[str, nn.Parameter]] = {} if weights else {Kind(): {}}
    for name, weight in weights.items():
        groups.setdefault(types.kind(name), {})[name] = weight
    return {**groups}


@dataclass(frozen=True)
class WeightTypes:
    """The types around each weight, by its name."""

    config: RunConfig
    called: Mapping[str, str]  # each name with all else that the weight may be called

    @classmethod
    def of(cls, config: RunConfig, layers: Slice) -> "WeightTypes":
        return cls(config, full_names(layers))

    def kind(self, name: str) -> Kind:
        sums, kind = sums_of(self.config)(name), self._forced(name)
        state = state_type(self.config.optimizer.optimizer_state_dtype, kind.kept)
        return replace(kind, sums=sums.dtype, state=state, reduction=sums.reduction)

    def _forced(self, name: str) -> Kind:
        wish, kind = self.config.precision, self._usual(name)
        if any(part in self.called[name] for part in wish.force_weight_to_fp32):
            return replace(kind, kept=FLOAT32)
        if any(part in self.called[name] for part in wish.force_weight_to_fp16):
            return replace(kind, kept=self._half, used=self._half)
        return kind

    def _usual(self, name: str) -> Kind:
        wish = self.config.precision
        is_of_a_norm = self.called[name] != name
        whole = self.config.network.full_precision_norm and is_of_a_norm
        if wish.precision == "32.32" or whole:
            return Kind()
        keeps_whole = wish.precision == "16.32" or wish.offload_fp32_weight_copy
        return Kind(kept=FLOAT32 if keeps_whole else self._half, used=self._half)

    @property
    def _half(self) -> NumberType:
        return TYPES[self.config.precision.half_type]


def state_type(wish: str, kept: NumberType) -> NumberType:
    """The numbers of the optimizer's state, for a weight that is kept in those."""
    return kept if wish == "weights" else TYPES[wish]
