"""A backward pass in two halves has the bits of a full one and retains nothing."""

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from support.model_families import ALL as FAMILIES
from support.model_families import Small
from support.networks import build_slice, images_and_labels, small_layers
from torch import Tensor, nn

from convoy.layers.build import build_layers
from convoy.models.layers import LayerPlan
from convoy.parallel.executor import SplitBackward, SplitState
from convoy.parallel.slice import Slice
from convoy.rng import StepPosition

NORMS = ["batch", "group"]


def images_of(seed: int) -> Tensor:
    images, _ = images_and_labels(4, 12, seed)
    return images.to(memory_format=torch.channels_last).requires_grad_()


def make_network(norm: str) -> Slice:
    return prepare(build_slice(small_layers(norm)))


def prepare(network: Slice) -> Slice:
    """Set training mode and channels_last."""
    return network.to(memory_format=torch.channels_last).train()


def take_gradients(network: Slice) -> dict[str, Tensor]:
    """Return the gradients of all weights and clear them."""
    weights = network.named_weights()
    gradients = {name: item.grad for name, item in weights.items() if item.grad is not None}
    network.zero_grad()
    return gradients


def full_backward(network: Slice, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    (logits,) = network(images)
    logits.logsumexp(1).sum().backward()
    assert images.grad is not None
    return images.grad, take_gradients(network)


def input_half(network: Slice, split: SplitBackward, images: Tensor) -> tuple[Tensor, SplitState]:
    state = SplitState()
    with split.record(state):
        (logits,) = network(images)
    (gradient,) = split.backward_input([logits.logsumexp(1).sum()], None, [images], state)
    assert gradient is not None
    return gradient, state


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(item, theirs[name]) for name, item in ours.items()
    )


@pytest.mark.parametrize("norm", NORMS)
def test_a_split_backward_has_the_bits_of_a_full_one(norm: str):
    network = make_network(norm)
    gradient, weights = full_backward(network, images_of(0))
    ours, state = input_half(network, SplitBackward(network), images_of(0))
    SplitBackward.backward_weight(state)

    assert torch.equal(ours, gradient)
    assert ours.stride() == gradient.stride()
    assert equal(take_gradients(network), weights)


SMALL = FAMILIES | {
    "efficientnet with proxy norm, stored": Small(
        {**FAMILIES["efficientnet with proxy norm"].options, "proxy_recompute": False}, 9
    )
}


@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL.keys())
def test_a_split_backward_has_the_bits_of_a_full_one_in_every_family(small: Small):
    """Without the first layer, whose input needs no gradient."""
    first, rest = (build_part(part) for part in (small.plan.layers[:1], small.plan.layers[1:]))
    images, _ = images_and_labels(2, small.size)
    (values,) = first(images.to(memory_format=torch.channels_last))
    gradient, weights = full_backward(rest, values.detach().clone().requires_grad_())
    rest.position.resume_after(0)  # the same dropout masks again
    ours, state = input_half(rest, SplitBackward(rest), values.detach().clone().requires_grad_())
    SplitBackward.backward_weight(state)

    assert torch.equal(ours, gradient)
    assert equal(take_gradients(rest), weights)


def build_part(layers: Sequence[LayerPlan]) -> Slice:
    position = StepPosition()
    return prepare(Slice(layers, build_layers(layers, 0, position), position))


@pytest.mark.parametrize("norm", NORMS)
def test_the_input_half_sets_no_weight_gradients(norm: str):
    network = make_network(norm)
    input_half(network, SplitBackward(network), images_of(0))

    assert take_gradients(network) == {}


@pytest.mark.parametrize("norm", NORMS)
def test_other_micro_batches_may_run_between_the_halves(norm: str):
    network = make_network(norm)
    expected = [full_backward(network, images_of(seed))[1] for seed in range(3)]
    split = SplitBackward(network)
    states = [input_half(network, split, images_of(seed))[1] for seed in range(3)]
    for state, weights in zip(states, expected, strict=True):
        split.backward_weight(state)

        assert equal(take_gradients(network), weights)


def test_weights_of_one_layer_are_deferred_together():
    """A convolution kernel computes the gradients of weight and bias together."""
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2))
    state = SplitState()
    split = SplitBackward(layers)
    with split.record(state):
        output = layers(torch.ones(2, 3, 4, 4))
    split.backward_input([output.sum()], None, [], state)

    assert [len(item.weights) for item in state.deferred] == [2, 2]
    assert list(map(id, state.immediate)) == list(map(id, layers[1].parameters()))


def test_a_saved_output_may_also_be_sent():
    """At a boundary inside a residual block, the side branch is the input of the convolution."""
    layers = nn.Conv2d(3, 3, 3, padding=1)
    values = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    saved = values.relu()
    gradients = [torch.ones_like(saved), torch.full_like(saved, 2)]
    torch.autograd.backward([layers(saved), saved], gradients, retain_graph=True)
    expected: Sequence[Tensor | None] = [values.grad, layers.weight.grad, layers.bias.grad]
    layers.zero_grad()
    state = SplitState()
    split = SplitBackward(layers)
    with split.record(state):
        output = [layers(saved), saved]
    (gradient,) = split.backward_input(output, gradients, [values], state)
    split.backward_weight(state)
    ours = [gradient, layers.weight.grad, layers.bias.grad]

    assert all(torch.equal(item, other) for item, other in zip(ours, expected, strict=True))


def test_nothing_is_retained_after_the_weight_half():
    network = make_network("batch")
    images = images_of(0)
    _, state = input_half(network, SplitBackward(network), images)
    saved = weakref.ref(images)  # saved for the weight gradient of the first convolution
    gc.disable()  # the graph must be freed without the cycle collector
    try:
        del images
        retained_before = saved() is not None
        SplitBackward.backward_weight(state)
        del state

        assert retained_before and saved() is None
    finally:
        gc.enable()


def test_recording_stops_after_the_forward_pass():
    network = make_network("batch")
    _, state = input_half(network, SplitBackward(network), images_of(0))
    recorded = len(state.deferred)
    network(images_of(1))

    assert (
        len(state.deferred)
        == recorded
        == sum(isinstance(module, nn.Conv2d | nn.Linear) for module in network.modules())
    )
