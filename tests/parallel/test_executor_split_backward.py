"""A backward pass in two halves leaves the same bits, and nothing else."""

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


def made_network(norm: str) -> Slice:
    return laid_together(build_slice(small_layers(norm)))


def laid_together(network: Slice) -> Slice:
    """In training, with the channels of a pixel together."""
    return network.to(memory_format=torch.channels_last).train()


def taken(network: Slice) -> dict[str, Tensor]:
    """The gradients of all weights; the weights have none afterwards."""
    weights = network.named_weights()
    gradients = {name: item.grad for name, item in weights.items() if item.grad is not None}
    network.zero_grad()
    return gradients


def whole(network: Slice, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    (logits,) = network(images)
    logits.logsumexp(1).sum().backward()
    assert images.grad is not None
    return images.grad, taken(network)


def first_half(network: Slice, split: SplitBackward, images: Tensor) -> tuple[Tensor, SplitState]:
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
    network = made_network(norm)
    gradient, weights = whole(network, images_of(0))
    ours, state = first_half(network, SplitBackward(network), images_of(0))
    SplitBackward.backward_weight(state)

    assert torch.equal(ours, gradient)
    assert ours.stride() == gradient.stride()
    assert equal(taken(network), weights)


SMALL = FAMILIES | {
    "efficientnet with proxy norm, kept": Small(
        {**FAMILIES["efficientnet with proxy norm"].options, "proxy_recompute": False}, 9
    )
}


@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL.keys())
def test_a_split_backward_has_the_bits_of_a_full_one_in_every_family(small: Small):
    """Behind the first layer, which has nobody to answer."""
    before, behind = (live(part) for part in (small.plan.layers[:1], small.plan.layers[1:]))
    images, _ = images_and_labels(2, small.size)
    (values,) = before(images.to(memory_format=torch.channels_last))
    gradient, weights = whole(behind, values.detach().clone().requires_grad_())
    behind.position.resume_after(0)  # what is left to chance comes once more
    ours, state = first_half(
        behind, SplitBackward(behind), values.detach().clone().requires_grad_()
    )
    SplitBackward.backward_weight(state)

    assert torch.equal(ours, gradient)
    assert equal(taken(behind), weights)


def live(layers: Sequence[LayerPlan]) -> Slice:
    position = StepPosition()
    return laid_together(Slice(layers, build_layers(layers, 0, position), position))


@pytest.mark.parametrize("norm", NORMS)
def test_the_input_half_sets_no_weight_gradients(norm: str):
    network = made_network(norm)
    first_half(network, SplitBackward(network), images_of(0))

    assert taken(network) == {}


@pytest.mark.parametrize("norm", NORMS)
def test_other_micro_batches_may_run_between_the_halves(norm: str):
    network = made_network(norm)
    expected = [whole(network, images_of(seed))[1] for seed in range(3)]
    split = SplitBackward(network)
    states = [first_half(network, split, images_of(seed))[1] for seed in range(3)]
    for state, weights in zip(states, expected, strict=True):
        split.backward_weight(state)

        assert equal(taken(network), weights)


def test_weights_of_one_layer_are_deferred_together():
    """The kernel of a convolution makes the gradient of its bias with that of its weight."""
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2))
    state = SplitState()
    split = SplitBackward(layers)
    with split.record(state):
        output = layers(torch.ones(2, 3, 4, 4))
    split.backward_input([output.sum()], None, [], state)

    assert [len(item.weights) for item in state.deferred] == [2, 2]
    assert list(map(id, state.immediate)) == list(map(id, layers[1].parameters()))


def test_a_saved_output_may_also_be_sent():
    """As at a border inside a residual block: the side road is what the convolution read."""
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
    network = made_network("batch")
    images = images_of(0)
    _, state = first_half(network, SplitBackward(network), images)
    saved = weakref.ref(images)  # the first convolution needs it for its weights
    gc.disable()  # the graph must go at once, without a search for cycles
    try:
        del images
        held_before = saved() is not None
        SplitBackward.backward_weight(state)
        del state

        assert held_before and saved() is None
    finally:
        gc.enable()


def test_recording_stops_after_the_forward_pass():
    network = made_network("batch")
    _, state = first_half(network, SplitBackward(network), images_of(0))
    noted = len(state.deferred)
    network(images_of(1))

    assert (
        len(state.deferred)
        == noted
        == sum(isinstance(module, nn.Conv2d | nn.Linear) for module in network.modules())
    )
