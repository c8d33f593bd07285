"""Traps: the first value that is not finite is found where it arises, and nothing else changes."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from support.networks import SingleStage, build_slice, images_and_labels, small_layers
from torch import Tensor, nn

from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree
from convoy.numerics.precision import FLOAT16, FLOAT32, FloatFormat
from convoy.numerics.traps import NO_RECORD, NonFiniteRecord, Phase, Traps, WatchedLayer, all_finite
from convoy.parallel.slice import RecomputedSlice

LAYERS = small_layers()
NAMES = [layer.name for layer in LAYERS]
MICROS = range(6, 9)  # a replica's, of many


class Trapped:
    """A small network, its gradients and its traps."""

    def __init__(self, of: FloatFormat = FLOAT32, recomputes: bool = False) -> None:
        self.network = build_slice(LAYERS)
        self.network.position.micro_batches = MICROS
        flat = FlatParameters(self.network.named_weights())
        self.tree = GradientTree(flat, MICROS.start, gradient_format=of)
        watched = [
            WatchedLayer(number, module, self.network.position)
            for number, module in enumerate(self.network.layers.values())
        ]
        self.traps = Traps(NAMES, watched, [self.tree])
        self.runs: nn.Module = self.network
        if recomputes:
            self.runs = RecomputedSlice(self.network, [NAMES[3]], nullcontext)

    def run(self, scale: float = 1.0) -> NonFiniteRecord | None:
        with self.traps.armed():
            self.passes(scale)
        return self.traps.first

    def passes(self, scale: float = 1.0) -> list[Tensor]:
        batches = [images_and_labels(4, 8, seed) for seed in range(len(MICROS))]
        SingleStage(self.runs, F.cross_entropy, self.tree.collect).run(batches, scale)
        vectors = [node.vector.clone() for node in self.tree.nodes()]
        self.tree.clear()
        return vectors

    def spoil(self, layer: str, micro: int, row: int, value: float = torch.nan) -> None:
        """From now on this layer makes such a value of a sample."""
        position = self.network.position

        def hook(module: nn.Module, given: object, made: Tensor) -> Tensor:
            del module, given
            bad = torch.zeros_like(made)
            bad[row] = value if position.micro == micro else 0.0
            return made + bad

        self.network.layers[layer].register_forward_hook(hook)

    def spoil_backward(self, layer: str, micro: int, change: Callable[[Tensor], Tensor]) -> None:
        position = self.network.position

        def hook(module: nn.Module, given: object, made: Tensor) -> Tensor:
            del module, given
            passed = made.view_as(made)
            if position.micro == micro:
                passed.register_hook(change)
            return passed

        self.network.layers[layer].register_forward_hook(hook)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("layer", [NAMES[0], NAMES[2], NAMES[-1]])
def test_a_non_finite_output_is_found_with_micro_batch_and_sample(
    layer: str, value: float, recomputes: bool
) -> None:
    trapped = Trapped(recomputes=recomputes)
    trapped.spoil(layer, micro=7, row=2, value=value)
    number = NAMES.index(layer)

    assert trapped.run() == NonFiniteRecord(1, Phase.FORWARD, number, 7, number, 1, (2,))


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_non_finite_output_gradient_is_found_before_weight_gradients(
    recomputes: bool,
) -> None:
    trapped = Trapped(recomputes=recomputes)

    def change(gradient: Tensor) -> Tensor:
        return gradient.index_fill(0, torch.tensor([1, 3]), torch.inf)

    trapped.spoil_backward(NAMES[5], 8, change)
    note = trapped.run()

    assert note == NonFiniteRecord(2, Phase.BACKWARD, -5, 8, 5, 2, (1, 3))


def test_a_weight_gradient_that_overflows_its_dtype_is_found() -> None:
    wide, narrow = Trapped(FLOAT32), Trapped(FLOAT16)
    scale = 2.0**20

    assert wide.run(scale) is None
    note = narrow.run(scale)
    assert note is not None
    assert (note.local_micro, note.phase, note.micro, note.bad_samples) == (0, Phase.WEIGHTS, 6, ())


def test_the_earliest_record_is_retained() -> None:
    trapped = Trapped()
    trapped.spoil(NAMES[1], micro=8, row=0)
    trapped.spoil(NAMES[6], micro=7, row=3)
    note = trapped.run()

    assert note is not None
    assert (note.micro, note.layer, note.bad_samples) == (7, 6, (3,))


def test_some_samples_are_listed_and_all_are_counted() -> None:
    traps = Trapped().traps
    traps._check_values(torch.full((11, 2), torch.nan), NonFiniteRecord(0, Phase.FORWARD, 3, 6, 3))

    assert traps.first == NonFiniteRecord(0, Phase.FORWARD, 3, 6, 3, 11, tuple(range(8)))


@pytest.mark.parametrize("recomputes", [False, True])
def test_traps_change_no_bit_and_remove_their_hooks(recomputes: bool) -> None:
    trapped, plain = Trapped(recomputes=recomputes), Trapped(recomputes=recomputes)
    with trapped.traps.armed():
        ours = trapped.passes()
    theirs = plain.passes()

    assert all(torch.equal(item, other) for item, other in zip(ours, theirs, strict=True))
    assert trapped.traps.first is None
    assert trapped.tree.gradient_hook is None
    assert not any(module._forward_hooks for module in trapped.network.modules())


def test_an_existing_gradient_hook_is_still_called() -> None:
    trapped, received = Trapped(), []
    trapped.tree.gradient_hook = lambda gradients: received.append(len(gradients))
    trapped.run()

    assert received == [len(trapped.tree.flat.weights)] * len(MICROS)
    assert trapped.tree.gradient_hook is not None


def test_a_rerun_update_has_the_same_step_positions() -> None:
    trapped = Trapped()
    position = trapped.network.position
    position.resume_after(4)
    trapped.passes()
    begun = position.num_entered
    trapped.traps.rewind_to(4)
    trapped.passes()

    assert position.num_entered == begun == 5 * len(MICROS)


@pytest.mark.parametrize(
    "note",
    [
        NonFiniteRecord(1, Phase.BACKWARD, -7, 3, 7, 2, (0, 3)),
        NonFiniteRecord(0, Phase.WEIGHTS, -2, 5, 2),
    ],
)
def test_a_record_is_encoded_as_a_tensor(note: NonFiniteRecord) -> None:
    assert note.as_tensor().shape == NO_RECORD.shape
    assert NonFiniteRecord.from_tensor(note.as_tensor()) == note
    assert NonFiniteRecord.from_tensor(NO_RECORD) is None


def test_all_finite_accepts_empty_and_finite_tensors_only() -> None:
    huge = torch.finfo(torch.float32).max

    assert all_finite(torch.zeros(0))
    assert all_finite(torch.tensor([huge, -huge]))
    assert not any(
        all_finite(torch.tensor([0.0, bad])) for bad in (torch.nan, torch.inf, -torch.inf)
    )
