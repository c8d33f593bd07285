"""Stages of the user's own: random numbers, recomputation, and what a trace records and leaves."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convoy.engine.custom_stages import (
    ArgumentForm,
    PipelineTrace,
    StageModule,
    StageNode,
    trace_stages,
)

IMAGES = torch.linspace(-1, 2, 24).view(6, 4)


def make_node(function: Callable[..., Any], index: int = 0, branch: int = 0) -> StageNode:
    return StageNode(index, branch, branches=2, function=function, device=0)


def trace(node: StageNode) -> PipelineTrace:
    return trace_stages([[node]], ((IMAGES,), ArgumentForm(1)), trained=[])


def make_module(node: StageNode, segments: tuple[range, ...] = ()) -> StageModule:
    """A stage as it runs in a pipeline; with segments it is recomputed."""
    only = StageNode(0, 0, 1, node.function, 0)
    return StageModule(node, trace(only).stages[0], segments)


def drop(values: Tensor) -> Tensor:
    return F.dropout(values, 0.5)


def dropped(update: int, micro: int, index: int = 0, seed: int = 1) -> Tensor:
    """The outputs of a stage with dropout for one micro-batch."""
    torch.manual_seed(seed)
    module = make_module(make_node(drop, index))
    module.start_update(update, micro)
    (outputs,) = module(IMAGES)
    assert isinstance(outputs, Tensor)
    return outputs


def test_random_numbers_depend_on_seed_update_micro_batch_and_stage() -> None:
    first = dropped(update=0, micro=0)
    others = [
        dropped(update=1, micro=0),
        dropped(update=0, micro=1),
        dropped(update=0, micro=0, index=1),
        dropped(update=0, micro=0, seed=2),
    ]

    assert torch.equal(first, dropped(update=0, micro=0))
    assert not any(torch.equal(first, other) for other in others)


def test_each_micro_batch_of_an_update_has_the_next_number() -> None:
    torch.manual_seed(1)
    module = make_module(make_node(drop))
    module.start_update(3, 8)
    outputs = [module(IMAGES)[0] for _ in range(2)]

    assert torch.equal(outputs[0], dropped(update=3, micro=8))
    assert torch.equal(outputs[1], dropped(update=3, micro=9))


def norm_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))


def test_recomputed_segments_update_running_statistics_once() -> None:
    expected, layers = norm_layers(), norm_layers()
    module = make_module(make_node(layers), segments=(range(2), range(2, 4)))
    expected(IMAGES).sum().backward()
    module(IMAGES)[0].sum().backward()

    for (name, buffer), plain in zip(layers.named_buffers(), expected.buffers(), strict=True):
        assert torch.equal(buffer, plain), name
    for weight, plain in zip(layers.parameters(), expected.parameters(), strict=True):
        assert torch.equal(_grad(weight), _grad(plain))


def _grad(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def test_a_trace_leaves_buffers_and_random_numbers_as_they_were() -> None:
    layers = nn.Sequential(norm_layers(), nn.Dropout())
    before = {name: buffer.clone() for name, buffer in layers.named_buffers()}
    state = torch.get_rng_state()
    trace(make_node(layers))

    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in layers.named_buffers():
        assert torch.equal(buffer, before[name]), name


def _apply(layer: nn.Module, values: Tensor) -> Any:
    return layer(values)


def _apply_keyword(values: Tensor, *, layers: dict[str, nn.Module]) -> Any:
    return layers["first"](values)


def _closure(layer: nn.Module) -> Callable[[Tensor], Any]:
    return lambda values: layer(values)


@pytest.mark.parametrize(
    "make_stage",
    [
        lambda layer: layer,
        _closure,
        lambda layer: partial(_apply, layer),
        lambda layer: partial(_apply_keyword, layers={"first": layer}),
    ],
    ids=["module", "closure", "argument of a partial", "keyword of a partial"],
)
def test_a_trace_finds_the_weights_that_a_stage_uses(make_stage: Callable[..., Any]) -> None:
    layer = nn.Linear(4, 2)
    (used,) = trace(make_node(make_stage(layer))).stages[0].used

    assert {id(tensor) for tensor in used} == {id(layer.weight), id(layer.bias)}


def test_the_mode_of_modules_is_up_to_the_user() -> None:
    layers = nn.Sequential(nn.Dropout(), nn.Linear(4, 4))
    layers[0].eval()
    make_module(make_node(layers)).train()
    assert not layers[0].training and layers[1].training

    layers.train()
    make_module(make_node(layers)).eval()
    assert layers[0].training and layers[1].training
