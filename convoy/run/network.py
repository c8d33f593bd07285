"""The live layers of one process: their weights by name, their pending statistics."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from convoy.layers.build import build_layers
from convoy.layers.dropout import Dropout, DropPath
from convoy.layers.modules import ProxyActivation
from convoy.layers.norms import BatchNorm, GroupNorm
from convoy.models.network import NetworkPlan
from convoy.parallel.collectives import NormSync
from convoy.parallel.slice import Recomputing, Slice
from convoy.plan.memory import RecomputePlan
from convoy.plan.stages import StagePlan, cut
from convoy.rng import StepPosition
from convoy.run.compile import Compiled

_WORDS = {"weight": "gamma", "bias": "beta", "proxy": "proxy"}  # of a norm's own weights


def full_names(layers: Slice) -> dict[str, str]:
    """The weights by name, each with all it may be called: `bn1.weight` is a gamma too."""
    words: dict[nn.Parameter, str] = {
        weight: _WORDS[own]
        for norm in layers.modules()
        if isinstance(norm, BatchNorm | GroupNorm | ProxyActivation)
        for own, weight in norm.named_parameters(recurse=False)
    }
    return {
        name: f"{name} {words[weight]}" if weight in words else name
        for name, weight in layers.named_weights().items()
    }


def without_decay(layers: Slice, spares: str) -> Collection[str] | None:
    """The names `--weight-decay-spares` means; None is every weight of one dimension."""
    if spares == "vectors":
        return None
    norms = {name for name, full in full_names(layers).items() if full != name}
    return norms if spares == "norms" else set()


def named_by(layers: Slice, parts: Collection[str]) -> set[str]:
    """Weights that are called by a name with one of these parts."""
    full = full_names(layers).items()
    return {name for name, words in full if any(part in words for part in parts)}


@dataclass(frozen=True)
class Network:
    """The layers of a process, a slice for each of its stages; those of them that gather
    statistics; and what is run: the slices themselves, compiled, or such as keep less."""

    slices: tuple[Slice, ...]
    norms: list[BatchNorm]
    runs: tuple[Slice | Compiled | Recomputing, ...]

    @property
    def slice(self) -> Slice:
        """The only one."""
        (only,) = self.slices
        return only

    def tensors(self) -> dict[str, Tensor]:
        """Weights and running statistics by name, without a way back through autograd."""
        return {
            name: tensor.detach()
            for one in self.slices
            for name, tensor in one.named_tensors().items()
        }

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])


def whole(plan: NetworkPlan) -> StagePlan:
    (stage,) = cut([layer.name for layer in plan.layers], ())
    return stage


def build_network(
    plan: NetworkPlan,
    stages: Sequence[StagePlan],
    seed: int,
    device: torch.device,
    micros: range = range(1),
) -> Network:
    """Fresh layers on the device. Pixels lie together (channels_last): 1.17 × on a CPU.

    `micros` are the micro-batches of an update that pass here, counted over all replicas.
    """
    slices = []
    for stage in stages:
        layers = plan.layers[stage.first : stage.last + 1]
        position = StepPosition(micros)
        built = Slice(layers, build_layers(layers, seed, position), position)
        built.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # a stub
        slices.append(built)
    norms = [one for built in slices for one in built.modules() if isinstance(one, BatchNorm)]
    return Network(tuple(slices), norms, tuple(slices))


def freeze(network: Network, names: Collection[str]) -> Network:
    """The same network, with layers that stay as they are and pass as in evaluation."""
    for one in network.slices:
        for name, layer in one.layers.items():
            if name in names:
                layer.requires_grad_(False)
                for part in layer.modules():
                    if isinstance(part, BatchNorm | Dropout | DropPath):
                        part.frozen = True
    norms = [norm for norm in network.norms if not norm.frozen]
    return Network(network.slices, norms, network.runs)


def train_only(network: Network, parts: Collection[str]) -> None:
    """Of all weights those that are called so; none given means all. Statistics run on."""
    for layers in network.slices if parts else ():
        chosen = named_by(layers, parts)
        for name, weight in layers.named_weights().items():
            if name not in chosen:
                weight.requires_grad_(False)


def share_statistics(network: Network, span: dist.ProcessGroup | None) -> None:
    """Let the norms see the batches of neighboring replicas, if there are any to share with."""
    if span is not None:
        partners = NormSync(span)
        for norm in network.norms:
            norm.share_with(partners)


def compiled(network: Network) -> Network:
    """The same network as programs, made at the first pass."""
    programs = tuple(Compiled(one) for one in network.slices)
    return Network(network.slices, network.norms, programs)


def with_recomputation(network: Network, plan: RecomputePlan) -> Network:
    """The same network, as frugal as the plan wants it."""
    if not plan.enabled:
        return network

    @contextmanager
    def quiet() -> Iterator[None]:
        """A pass that is computed again has left its statistics already."""
        for norm in network.norms:
            norm.recording = False
        try:
            yield
        finally:  # torch leaves by an exception as soon as it has what it needs
            for norm in network.norms:
                norm.recording = True

    pairs = zip(network.slices, network.runs, strict=True)
    frugal = tuple(Recomputing(one, plan.kept, quiet, runs.run) for one, runs in pairs)
    return Network(network.slices, network.norms, frugal)
