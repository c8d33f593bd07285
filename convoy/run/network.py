"""The layers of one process: weights by name, norms, and the modules that run them."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from convoy.layers.build import build_layers
from convoy.layers.dropout import Dropout, DropPath
from convoy.layers.modules import ProxyActivation
from convoy.layers.norms import BatchNorm, GroupNorm
from convoy.models.network import NetworkPlan
from convoy.parallel.slice import RecomputedSlice, Slice
from convoy.planning.memory import RecomputePlan
from convoy.planning.stages import StagePlan, split_into_stages
from convoy.rng import StepPosition
from convoy.run.compile import CompiledSlice

_NORM_ROLES = {"weight": "gamma", "bias": "beta", "proxy": "proxy"}  # of a norm's parameters


def norm_roles(layers: Slice) -> dict[str, str]:
    """The role of each parameter of a norm, by name: `bn1.weight` is a gamma."""
    roles: dict[nn.Parameter, str] = {
        weight: _NORM_ROLES[parameter]
        for norm in layers.modules()
        if isinstance(norm, BatchNorm | GroupNorm | ProxyActivation)
        for parameter, weight in norm.named_parameters(recurse=False)
    }
    weights = layers.named_weights().items()
    return {name: roles[weight] for name, weight in weights if weight in roles}


def searchable_names(layers: Slice) -> dict[str, str]:
    """Map each name to the text that filters search: the name, and the role in a norm."""
    roles = norm_roles(layers)
    return {name: f"{name} {roles.get(name, '')}".rstrip() for name in layers.named_weights()}


def no_decay_names(layers: Slice, exempt: str) -> Collection[str] | None:
    """The names that `--weight-decay-spares` exempts; None: all one-dimensional weights."""
    if exempt == "vectors":
        return None
    return norm_roles(layers).keys() if exempt == "norms" else set()


def names_matching(layers: Slice, substrings: Collection[str]) -> set[str]:
    """Names of weights whose name or role contains one of these substrings."""
    texts = searchable_names(layers).items()
    return {name for name, text in texts if any(substring in text for substring in substrings)}


@dataclass(frozen=True)
class Network:
    """The layers of a process, one slice per stage.

    `stage_modules` are what runs: the slices themselves, or their compiled or recomputing wrappers.
    """

    slices: tuple[Slice, ...]
    stage_modules: tuple[Slice | CompiledSlice | RecomputedSlice, ...]

    @property
    def slice(self) -> Slice:
        """The slice of a network with a single stage."""
        (only,) = self.slices
        return only

    @property
    def norms(self) -> list[BatchNorm]:
        """The batch norms that collect statistics."""
        modules = (module for layers in self.slices for module in layers.modules())
        return [norm for norm in modules if isinstance(norm, BatchNorm) and not norm.frozen]

    def tensors(self) -> dict[str, Tensor]:
        """Weights and running statistics by name, detached."""
        return {
            name: tensor.detach()
            for layers in self.slices
            for name, tensor in layers.named_tensors().items()
        }

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])


def build_network(
    plan: NetworkPlan,
    seed: int,
    device: torch.device,
    stages: Sequence[StagePlan] = (),
    micros: range = range(1),
) -> Network:
    """Build initialized layers on the device, in channels_last (1.17 × faster on a CPU).

    Without stages, the whole network is one slice. `micros` are the micro-batches of an update that
    run here, counted over all replicas.
    """
    slices = []
    for stage in stages or split_into_stages([layer.name for layer in plan.layers], ()):
        layers = plan.layers[stage.first : stage.last + 1]
        position = StepPosition(micros)
        built = Slice(layers, build_layers(layers, seed, position), position)
        built.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # a stub
        slices.append(built)
    return Network(tuple(slices), tuple(slices))


def freeze(network: Network, names: Collection[str]) -> None:
    """Freeze layers: no training, and behavior as in evaluation."""
    for layers in network.slices:
        for name, layer in layers.layers.items():
            if name in names:
                layer.requires_grad_(False)
                for module in layer.modules():
                    if isinstance(module, BatchNorm | Dropout | DropPath):
                        module.frozen = True


def train_only(network: Network, substrings: Collection[str]) -> None:
    """Train only weights with these substrings; none means all. Statistics are still updated."""
    for layers in network.slices if substrings else ():
        chosen = names_matching(layers, substrings)
        for name, weight in layers.named_weights().items():
            if name not in chosen:
                weight.requires_grad_(False)


def with_recomputation(network: Network, plan: RecomputePlan) -> Network:
    """Wrap the slices for recomputation, if the plan enables it."""
    if not plan.enabled:
        return network
    norms = network.norms

    @contextmanager
    def without_statistics() -> Iterator[None]:
        """A recomputed forward pass must not record its statistics again."""
        for norm in norms:
            norm.records_statistics = False
        try:
            yield
        finally:  # torch stops a recomputation early by an exception
            for norm in norms:
                norm.records_statistics = True

    pairs = zip(network.slices, network.stage_modules, strict=True)
    recomputed = tuple(
        RecomputedSlice(layers, plan.checkpoints, without_statistics, module.run)
        for layers, module in pairs
    )
    return Network(network.slices, recomputed)
