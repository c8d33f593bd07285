"""Every family, cut before each of its layers: the slices together are the network, bit for bit.

What crosses a border goes through the links of a real pipeline, within one process.
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
from convoy.parallel.channels import P2PChannel, to_strides
from convoy.parallel.slice import Slice
from convoy.planning.stages import StagePlan, stage_boundary, stages_from_starts
from convoy.rng import StepPosition

SEED, SAMPLES = 3, 2
APART = 9
CPU = torch.device("cpu")
WHOLE = Arithmetic()
HALVES = {
    "float16": Arithmetic(FLOAT16),
    "bfloat16": Arithmetic(BFLOAT16),
    "float16 partial sums": Arithmetic(FLOAT16, half_partials=True),
    "float16 of the device": Arithmetic(FLOAT16, native=True),
}
Numbers = dict[str, Tensor]


class Mailbox(P2PChannel):
    """A channel to oneself."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(shapes, CPU, None, 0, 0)  # type: ignore[arg-type]  # it needs no group
        self.letters: list[Tensor] = []

    def _isend(self, tensor: Tensor) -> dist.Work:
        self.letters.append(tensor.clone())
        return Arrived()

    def _irecv(self, tensor: Tensor) -> dist.Work:
        tensor.copy_(self.letters.pop(0))
        return Arrived()


class Arrived(dist.Work):
    """Nothing is on its way here."""

    def wait(self, timeout: object = None) -> bool:
        del timeout
        return True


class Part:
    """One stage, built by itself as a process of a pipeline does, with the road to the next."""

    def __init__(self, plan: NetworkPlan, stage: StagePlan, arithmetic: Arithmetic) -> None:
        layers, position = plan.layers[stage.first : stage.last + 1], StepPosition()
        self.slice = Slice(layers, build_layers(layers, SEED, position), position)
        self.slice.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a stub
        self.slice.set_arithmetic(arithmetic, rounds_input=stage.first == 0)
        shapes = stage_boundary(plan, stage, SAMPLES).outgoing
        self.onward, self.back = (Mailbox(shapes) for _ in range(2))
        self.received: Bundle = ()
        self.made: Bundle = ()
        self.strides: dict[int, tuple[int, ...]] = {}

    def forward(self, bundle: Bundle) -> Bundle:
        """What the next stage receives."""
        self.received, self.strides = bundle, {}
        for index, tensor in enumerate(bundle):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._note, index))  # type: ignore[no-untyped-call]
        self.made = self.slice(*bundle)
        return tuple(item.requires_grad_() for item in sent(self.onward, self.made))

    def _note(self, index: int, gradient: Tensor) -> None:
        self.strides[index] = gradient.stride()

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients of what was received, as the layers made them."""
        if any(item.requires_grad for item in self.made):  # a stage may have no weights at all
            torch.autograd.backward(self.made, gradients)
        return [
            to_strides(tensor.grad, self.strides[index])
            for index, tensor in enumerate(self.received)
            if tensor.grad is not None
        ]


def sent(link: P2PChannel, bundle: Sequence[Tensor]) -> Bundle:
    link.send(bundle)
    return link.receive()


def parts_of(
    plan: NetworkPlan, starts: Sequence[int], arithmetic: Arithmetic = WHOLE
) -> list[Part]:
    names = [layer.name for layer in plan.layers]
    return [Part(plan, start, arithmetic) for start in stages_from_starts(names, starts)]


def train(parts: list[Part], size: int, micro_batches: int) -> Numbers:
    """Forward and back, one micro-batch after the other; every number that came out."""
    numbers: Numbers = {}
    for micro in range(micro_batches):
        images, labels = images_and_labels(SAMPLES, size, seed=micro)
        bundle: Bundle = (images.to(memory_format=torch.channels_last),)
        for part in parts:
            bundle = part.forward(bundle)
        (logits,) = parts[-1].made
        numbers[f"logits {micro}"] = logits.detach()
        parts[-1].made = (F.cross_entropy(logits, labels),)
        gradients: Sequence[Tensor | None] = [None]
        for before, part in zip([None, *parts[:-1]][::-1], reversed(parts), strict=True):
            gradients = part.backward(gradients)
            gradients = gradients if before is None else sent(before.back, gradients)
    return numbers | left_behind(parts)


def left_behind(parts: list[Part]) -> Numbers:
    """Gradients by weight, and the statistics that wait."""
    found: Numbers = {}
    for part in parts:
        for name, weight in part.slice.named_weights().items():
            assert weight.grad is not None, name
            found[name] = weight.grad
        for name, norm in part.slice.layers.items():
            if isinstance(norm, BatchNorm):
                for number, pair in enumerate(norm.pending_statistics):
                    found[f"{name} {number}"] = torch.stack(pair)
    return found


def different(left: Numbers, right: Numbers) -> list[str]:
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


@pytest.mark.parametrize("name", ALL)
def test_cut_before_any_layer_a_network_leaves_the_same_bits(name: str):
    """A run is cut at every ninth layer, so nine runs are cut everywhere."""
    plan, size = ALL[name].plan, ALL[name].size
    micro_batches = 2 if name in RANDOM else 1
    full = train(parts_of(plan, [0]), size, micro_batches)

    assert sum(bool(tensor.any()) for tensor in full.values()) > 0.8 * len(full)
    for first in range(1, APART + 1):
        starts = range(first, len(plan.layers), APART)
        cut = train(parts_of(plan, [0, *starts]), size, micro_batches)

        assert different(cut, full) == [], [plan.layers[start].name for start in starts]


@pytest.mark.parametrize("name", ALL)
def test_a_slice_for_every_layer_leaves_the_same_bits(name: str):
    plan, size = ALL[name].plan, ALL[name].size
    full = train(parts_of(plan, [0]), size, 2)

    assert different(train(parts_of(plan, range(len(plan.layers))), size, 2), full) == []


@pytest.mark.parametrize("arithmetic", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("name", ["resnet8 A", "resnet8 strided groups", "efficientnet"])
def test_in_16_bits_too_a_slice_for_every_layer_leaves_the_same_bits(
    name: str, arithmetic: Arithmetic
):
    plan, size = ALL[name].plan, ALL[name].size
    full = train(parts_of(plan, [0], arithmetic), size, 2)
    cut = train(parts_of(plan, range(len(plan.layers)), arithmetic), size, 2)

    assert different(cut, full) == []
    assert different(train(parts_of(plan, [0]), size, 2), full) != []
