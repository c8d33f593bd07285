"""Recomputation stores fewer tensors and changes no result."""

from dataclasses import replace

import pytest
import torch
from support.networks import SingleStage
from support.pipelines import Case, StageResult, Trained, smooth, train_single_process
from torch import Tensor

from convoy.numerics.precision import BFLOAT16, Arithmetic
from convoy.planning.memory import plan_recompute

POINTS = {
    "none": (),
    "block boundaries": (r"relu|layer\d/\d",),
    "before activations": (".*add",),
    "inside blocks": (r".*conv\d",),
    "everywhere": (".*",),
}


@pytest.mark.parametrize("model", ["resnet8", "resnet8-pad", "resnet8-group", "bottleneck"])
@pytest.mark.parametrize("points", POINTS.values(), ids=POINTS.keys())
def test_recomputation_gives_the_same_bits(points: tuple[str, ...], model: str):
    case = Case(model=model, size=16, micro_batches=2)
    names = [layer.name for layer in case.layers]
    checkpoints = plan_recompute(points, names).checkpoints

    assert train_single_process(replace(case, recompute=checkpoints)) == train_single_process(case)


@pytest.mark.parametrize("native", [False, True], ids=["rounded", "native"])
@pytest.mark.parametrize("points", POINTS.values(), ids=POINTS.keys())
def test_recomputation_gives_the_same_bits_in_16_bits(points: tuple[str, ...], native: bool):
    case = Case(model="resnet8-group", size=16, micro_batches=2)
    checkpoints = plan_recompute(points, [layer.name for layer in case.layers]).checkpoints
    arithmetic = Arithmetic(BFLOAT16, native=native)

    seen = [
        train_in_16_bits(replace(case, recompute=recompute), arithmetic)
        for recompute in (None, checkpoints)
    ]

    assert seen[0] == seen[1] != train_single_process(case)


def train_in_16_bits(case: Case, arithmetic: Arithmetic) -> StageResult:
    trained = Trained(case, 0)
    trained.slice.set_arithmetic(arithmetic, rounds_input=True)
    return trained.after(SingleStage(trained.module, smooth, trained.collect).run(case.batches()))


def test_names_of_other_stages_change_nothing():
    case = Case(micro_batches=1, recompute=("layer9/0/relu", "layer2/0/relu"))

    assert saved_sizes(case) == saved_sizes(replace(case, recompute=("layer2/0/relu",)))


def saved_sizes(case: Case) -> list[tuple[int, ...]]:
    """The sizes of all tensors that a forward pass saves for the backward pass."""
    module, sizes = Trained(case, 0).module.train(), []
    ((images, _),) = case.batches()

    def record(tensor: Tensor) -> Tensor:
        sizes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda saved: saved):
        module(images)
    return [size for size in sizes if len(size) > 1]


def test_without_checkpoints_only_the_input_is_stored():
    assert saved_sizes(Case(micro_batches=1, recompute=())) == [(4, 3, 12, 12)]


def test_only_inputs_and_checkpoints_are_stored():
    case = Case(micro_batches=1, recompute=("layer2/0/relu", "layer3/0/conv1"))

    assert saved_sizes(case) == [
        (4, 3, 12, 12),
        (4, 32, 6, 6),
        *((4, 64, 3, 3), (4, 32, 6, 6)),  # the main and the side branch inside a block
    ]


def test_statistics_are_recorded_again_after_the_backward_pass():
    case = Case(micro_batches=3, recompute=())
    trained = Trained(case, 0)
    SingleStage(trained.module, smooth, trained.collect).run(case.batches())

    assert [len(norm.pending_statistics) for norm in trained.norms.values()] == [3] * len(
        trained.norms
    )
    assert all(norm.records_statistics for norm in trained.norms.values())


def test_evaluation_does_not_recompute():
    case = Case(micro_batches=1, recompute=())
    recomputing, plain = Trained(case, 0).module.eval(), Trained(case, 0).slice.eval()
    ((images, _),) = case.batches()

    assert torch.equal(recomputing(images)[0], plain(images)[0])
