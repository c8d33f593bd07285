"""Every family, split before each of its layers, has the bits of the full network.

Tensors go through the channels of a real pipeline, within one process.
"""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.model_families import ALL, RANDOM
from support.networks import images_and_labels
from torch import Tensor

from convoy.batch import Bundle
from convoy.layers.build import build_layers
from convoy.layers.norms import BatchNorm
from convoy.models.network import NetworkPlan
from convoy.numerics.precision import BFLOAT16, FLOAT16, Arithmetic
from convoy.parallel.channels import P2PChannel, TensorSpec, to_strides
from convoy.parallel.slice import Slice
from convoy.planning.stages import StagePlan, stage_boundary, stages_from_starts
from convoy.rng import StepPosition

SEED, SAMPLES = 3, 2
SPACING = 9
CPU = torch.device("cpu")
FULL_PRECISION = Arithmetic()
HALF_PRECISIONS = {
    "float16": Arithmetic(FLOAT16),
    "bfloat16": Arithmetic(BFLOAT16),
    "float16 partial sums": Arithmetic(FLOAT16, half_partials=True),
    "native float16": Arithmetic(FLOAT16, native=True),
}
Tensors = dict[str, Tensor]


class LoopbackChannel(P2PChannel):
    """A channel that receives the tensors it sends."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        specs = [TensorSpec(shape) for shape in shapes]
        super().__init__(specs, specs, CPU, None, 0, 0)  # type: ignore[arg-type]  # needs no group
        self.pending: list[Tensor] = []

    def _isend(self, tensor: Tensor) -> dist.Work:
        self.pending.append(tensor.clone())
        return CompletedWork()

    def _irecv(self, tensor: Tensor) -> dist.Work:
        tensor.copy_(self.pending.pop(0))
        return CompletedWork()


class CompletedWork(dist.Work):
    """A transfer that is already complete."""

    def wait(self, timeout: object = None) -> bool:
        del timeout
        return True


class LocalStage:
    """A stage, built separately as in a pipeline process, with the channels to the next stage."""

    def __init__(self, plan: NetworkPlan, stage: StagePlan, arithmetic: Arithmetic) -> None:
        layers, position = plan.layers[stage.first : stage.last + 1], StepPosition()
        self.slice = Slice(layers, build_layers(layers, SEED, position), position)
        self.slice.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # incomplete stub
        self.slice.set_arithmetic(arithmetic, rounds_input=stage.first == 0)
        shapes = stage_boundary(plan, stage, SAMPLES).outgoing
        self.activations, self.gradients = (LoopbackChannel(shapes) for _ in range(2))
        self.received: Bundle = ()
        self.outputs: Bundle = ()
        self.strides: dict[int, tuple[int, ...]] = {}

    def forward(self, bundle: Bundle) -> Bundle:
        """The input of the next stage."""
        self.received, self.strides = bundle, {}
        for index, tensor in enumerate(bundle):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._record_strides, index))  # type: ignore[no-untyped-call]
        self.outputs = self.slice(*bundle)
        return tuple(item.requires_grad_() for item in transfer(self.activations, self.outputs))

    def _record_strides(self, index: int, gradient: Tensor) -> None:
        self.strides[index] = gradient.stride()

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients of the received tensors, with the strides that the layers gave them."""
        if any(item.requires_grad for item in self.outputs):  # a stage may have no weights
            torch.autograd.backward(self.outputs, gradients)
        return [
            to_strides(tensor.grad, self.strides[index])
            for index, tensor in enumerate(self.received)
            if tensor.grad is not None
        ]


def transfer(channel: P2PChannel, bundle: Sequence[Tensor]) -> Bundle:
    channel.send(bundle)
    return channel.receive()


def make_stages(
    plan: NetworkPlan, starts: Sequence[int], arithmetic: Arithmetic = FULL_PRECISION
) -> list[LocalStage]:
    names = [layer.name for layer in plan.layers]
    return [LocalStage(plan, stage, arithmetic) for stage in stages_from_starts(names, starts)]


def train(stages: list[LocalStage], size: int, micro_batches: int) -> Tensors:
    """Train one micro-batch after another; returns logits, gradients and statistics."""
    tensors: Tensors = {}
    for micro in range(micro_batches):
        images, labels = images_and_labels(SAMPLES, size, seed=micro)
        bundle: Bundle = (images.to(memory_format=torch.channels_last),)
        for stage in stages:
            bundle = stage.forward(bundle)
        (logits,) = stages[-1].outputs
        tensors[f"logits {micro}"] = logits.detach()
        stages[-1].outputs = (F.cross_entropy(logits, labels),)
        gradients: Sequence[Tensor | None] = [None]
        for before, stage in zip([None, *stages[:-1]][::-1], reversed(stages), strict=True):
            gradients = stage.backward(gradients)
            gradients = gradients if before is None else transfer(before.gradients, gradients)
    return tensors | gradients_and_statistics(stages)


def gradients_and_statistics(stages: list[LocalStage]) -> Tensors:
    """Gradients by weight, and pending statistics."""
    found: Tensors = {}
    for stage in stages:
        for name, weight in stage.slice.named_weights().items():
            assert weight.grad is not None, name
            found[name] = weight.grad
        for name, norm in stage.slice.layers.items():
            if isinstance(norm, BatchNorm):
                for number, pair in enumerate(norm.pending_statistics):
                    found[f"{name} {number}"] = torch.stack(pair)
    return found


def different(left: Tensors, right: Tensors) -> list[str]:
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


@pytest.mark.parametrize("name", ALL)
def test_a_split_before_any_layer_gives_the_same_bits(name: str):
    """Each run is split at every ninth layer, so nine runs cover all layers."""
    plan, size = ALL[name].plan, ALL[name].size
    micro_batches = 2 if name in RANDOM else 1
    full = train(make_stages(plan, [0]), size, micro_batches)

    assert sum(bool(tensor.any()) for tensor in full.values()) > 0.8 * len(full)
    for first in range(1, SPACING + 1):
        starts = range(first, len(plan.layers), SPACING)
        sliced = train(make_stages(plan, [0, *starts]), size, micro_batches)

        assert different(sliced, full) == [], [plan.layers[start].name for start in starts]


@pytest.mark.parametrize("name", ALL)
def test_a_slice_for_every_layer_gives_the_same_bits(name: str):
    plan, size = ALL[name].plan, ALL[name].size
    full = train(make_stages(plan, [0]), size, 2)

    assert different(train(make_stages(plan, range(len(plan.layers))), size, 2), full) == []


@pytest.mark.parametrize("arithmetic", HALF_PRECISIONS.values(), ids=HALF_PRECISIONS)
@pytest.mark.parametrize("name", ["resnet8 A", "resnet8 strided groups", "efficientnet"])
def test_a_slice_for_every_layer_gives_the_same_bits_in_16_bits(name: str, arithmetic: Arithmetic):
    plan, size = ALL[name].plan, ALL[name].size
    full = train(make_stages(plan, [0], arithmetic), size, 2)
    sliced = train(make_stages(plan, range(len(plan.layers)), arithmetic), size, 2)

    assert different(sliced, full) == []
    assert different(train(make_stages(plan, [0]), size, 2), full) != []
