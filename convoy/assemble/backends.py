"""A network that only answers: norms folded into convolutions, carried out by a backend."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from convoy.assemble.network import Network
from convoy.assemble.programs import Compiled
from convoy.errors import ConfigError
from convoy.models.fold import fold_norms
from convoy.models.onnx import OnnxNetwork, as_onnx, need_onnx
from convoy.numerics.types import FLOAT32
from convoy.parallel.pipeline import LoneInference
from convoy.parallel.slice import Slice
from convoy.plan.network import COLORS, NetworkPlan


class Answerer:
    """Answers as the network would. Its weights are copies, taken over when that is asked for."""

    def __init__(self, plan: NetworkPlan, network: Network, backend: str) -> None:
        self._plan = plan
        self._network = network
        self._backend = backend
        self._slice = self._folded()
        self._carry_out = BACKENDS[backend]
        self._stage = self._carry_out(self._slice, plan.image_size)

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """The logits of each batch."""
        return LoneInference(self._stage).run(batches)

    @torch.no_grad()
    def take_over(self) -> None:
        """The network has other weights now."""
        fresh = self._folded().named_tensors()
        for name, tensor in self._slice.named_tensors().items():
            tensor.copy_(fresh[name])
        if not isinstance(self._stage, Slice | Compiled):  # those see the weights themselves
            self._stage = self._carry_out(self._slice, self._plan.image_size)

    def _folded(self) -> Slice:
        """In 16 bits norms round what they are given, so they stay apart."""
        network = self._network.slice
        modules = dict(network.layers.items())
        if network.arithmetic.number == FLOAT32 or self._backend == "onnxruntime":
            return Slice(*fold_norms(self._plan.layers, modules))
        layers = Slice(self._plan.layers, modules)
        layers.compute_in(network.arithmetic, takes_images=True)
        return layers


def refuse_backend(backend: str, device: torch.device) -> None:
    """What cannot be had is known before anything is measured."""
    if backend != "onnxruntime":
        return
    if device.type != "cpu":
        raise ConfigError(
            f"--backend onnxruntime answers on the CPU, not on {device.type}; use --device cpu"
        )
    need_onnx(f"--backend {backend}")


def _as_it_is(layers: Slice, image_size: int) -> nn.Module:
    del image_size
    return layers


def _compiled(layers: Slice, image_size: int) -> nn.Module:
    del image_size
    return Compiled(layers)


def _by_onnx_runtime(layers: Slice, image_size: int) -> nn.Module:
    example = torch.zeros(2, COLORS, image_size, image_size)
    return OnnxNetwork(as_onnx(layers, example), torch.get_num_threads())


BACKENDS: dict[str, Callable[[Slice, int], nn.Module]] = {
    "torch": _as_it_is,
    "compiled": _compiled,
    "onnxruntime": _by_onnx_runtime,
}
