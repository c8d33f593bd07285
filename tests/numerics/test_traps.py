"""Traps find the first non-finite value in the layer that produces it and change nothing."""

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
MICRO_BATCHES = range(6, 9)  # the micro-batches of one replica


class TrapScenario:
    """A small network with gradients and traps."""

    def __init__(self, gradient_format: FloatFormat = FLOAT32, recomputes: bool = False) -> None:
        self.network = build_slice(LAYERS)
        self.network.position.micro_batches = MICRO_BATCHES
        flat = FlatParameters(self.network.named_weights())
        self.tree = GradientTree(flat, MICRO_BATCHES.start, gradient_format=gradient_format)
        watched = [
            WatchedLayer(number, module, self.network.position)
            for number, module in enumerate(self.network.layers.values())
        ]
        self.traps = Traps(NAMES, watched, [self.tree])
        self.module: nn.Module = self.network
        if recomputes:
            self.module = RecomputedSlice(self.network, [NAMES[3]], nullcontext)

    def run(self, scale: float = 1.0) -> NonFiniteRecord | None:
        with self.traps.armed():
            self.run_passes(scale)
        return self.traps.first

    def run_passes(self, scale: float = 1.0) -> list[Tensor]:
        batches = [images_and_labels(4, 8, seed) for seed in range(len(MICRO_BATCHES))]
        SingleStage(self.module, F.cross_entropy, self.tree.collect).run(batches, scale)
        vectors = [node.vector.clone() for node in self.tree.nodes()]
        self.tree.clear()
        return vectors

    def inject(self, layer: str, micro: int, row: int, value: float = torch.nan) -> None:
        """Add a non-finite value to one sample of the output of this layer."""
        position = self.network.position

        def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            del module, inputs
            bad = torch.zeros_like(output)
            bad[row] = value if position.micro == micro else 0.0
            return output + bad

        self.network.layers[layer].register_forward_hook(hook)

    def inject_backward(self, layer: str, micro: int, change: Callable[[Tensor], Tensor]) -> None:
        position = self.network.position

        def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            del module, inputs
            view = output.view_as(output)
            if position.micro == micro:
                view.register_hook(change)
            return view

        self.network.layers[layer].register_forward_hook(hook)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("layer", [NAMES[0], NAMES[2], NAMES[-1]])
def test_a_non_finite_output_is_found_with_micro_batch_and_sample(
    layer: str, value: float, recomputes: bool
) -> None:
    scenario = TrapScenario(recomputes=recomputes)
    scenario.inject(layer, micro=7, row=2, value=value)
    number = NAMES.index(layer)

    assert scenario.run() == NonFiniteRecord(1, Phase.FORWARD, number, 7, number, 1, (2,))


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_non_finite_output_gradient_is_found_before_weight_gradients(
    recomputes: bool,
) -> None:
    scenario = TrapScenario(recomputes=recomputes)

    def change(gradient: Tensor) -> Tensor:
        return gradient.index_fill(0, torch.tensor([1, 3]), torch.inf)

    scenario.inject_backward(NAMES[5], 8, change)
    record = scenario.run()

    assert record == NonFiniteRecord(2, Phase.BACKWARD, -5, 8, 5, 2, (1, 3))


def test_a_weight_gradient_that_overflows_its_dtype_is_found() -> None:
    fp32, fp16 = TrapScenario(FLOAT32), TrapScenario(FLOAT16)
    scale = 2.0**20

    assert fp32.run(scale) is None
    record = fp16.run(scale)
    assert record is not None
    assert (record.local_micro, record.phase, record.micro, record.bad_samples) == (
        0,
        Phase.WEIGHTS,
        6,
        (),
    )


def test_the_earliest_record_is_retained() -> None:
    scenario = TrapScenario()
    scenario.inject(NAMES[1], micro=8, row=0)
    scenario.inject(NAMES[6], micro=7, row=3)
    record = scenario.run()

    assert record is not None
    assert (record.micro, record.layer, record.bad_samples) == (7, 6, (3,))


def test_some_samples_are_listed_and_all_are_counted() -> None:
    traps = TrapScenario().traps
    traps._check_values(torch.full((11, 2), torch.nan), NonFiniteRecord(0, Phase.FORWARD, 3, 6, 3))

    assert traps.first == NonFiniteRecord(0, Phase.FORWARD, 3, 6, 3, 11, tuple(range(8)))


@pytest.mark.parametrize("recomputes", [False, True])
def test_traps_change_no_bit_and_remove_their_hooks(recomputes: bool) -> None:
    scenario, plain = TrapScenario(recomputes=recomputes), TrapScenario(recomputes=recomputes)
    with scenario.traps.armed():
        ours = scenario.run_passes()
    theirs = plain.run_passes()

    assert all(torch.equal(item, other) for item, other in zip(ours, theirs, strict=True))
    assert scenario.traps.first is None
    assert scenario.tree.gradient_hook is None
    assert not any(module._forward_hooks for module in scenario.network.modules())


def test_an_existing_gradient_hook_is_still_called() -> None:
    scenario, received = TrapScenario(), []
    scenario.tree.gradient_hook = lambda gradients: received.append(len(gradients))
    scenario.run()

    assert received == [len(scenario.tree.flat.weights)] * len(MICRO_BATCHES)
    assert scenario.tree.gradient_hook is not None


def test_a_rerun_update_has_the_same_step_positions() -> None:
    scenario = TrapScenario()
    position = scenario.network.position
    position.resume_after(4)
    scenario.run_passes()
    entered = position.num_entered
    scenario.traps.rewind_to(4)
    scenario.run_passes()

    assert position.num_entered == entered == 5 * len(MICRO_BATCHES)


@pytest.mark.parametrize(
    "record",
    [
        NonFiniteRecord(1, Phase.BACKWARD, -7, 3, 7, 2, (0, 3)),
        NonFiniteRecord(0, Phase.WEIGHTS, -2, 5, 2),
    ],
)
def test_a_record_is_encoded_as_a_tensor(record: NonFiniteRecord) -> None:
    assert record.as_tensor().shape == NO_RECORD.shape
    assert NonFiniteRecord.from_tensor(record.as_tensor()) == record
    assert NonFiniteRecord.from_tensor(NO_RECORD) is None


def test_all_finite_accepts_empty_and_finite_tensors_only() -> None:
    huge = torch.finfo(torch.float32).max

    assert all_finite(torch.zeros(0))
    assert all_finite(torch.tensor([huge, -huge]))
    assert not any(
        all_finite(torch.tensor([0.0, bad])) for bad in (torch.nan, torch.inf, -torch.inf)
    )
