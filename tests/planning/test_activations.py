"""The planned activation memory of a micro-batch against autograd and against measurements."""

import pytest
from support.activation_bytes import measure_single_process
from support.model_families import ALL as FAMILIES
from support.model_families import Small
from support.networks import (
    CLASSES,
    bottleneck_layers,
    build_slice,
    images_and_labels,
    short_name,
    small_layers,
)
from support.saved_tensors import saved_bytes, unplanned_bytes
from torch import Tensor

from convoy.config.schema import build_config
from convoy.config.sections.network import NetworkConfig
from convoy.layers.build import build_layers
from convoy.models.layers import (
    ActivationSpec,
    ConvSpec,
    LayerPlan,
    MaxPoolSpec,
    MultiplySpec,
    PadChannelsSpec,
    ProxyActivationSpec,
    Route,
    Shape,
    SpatialMeanSpec,
    layer_costs,
)
from convoy.models.resnet import resnet_layers
from convoy.parallel.slice import Slice
from convoy.planning.activations import (
    ActivationFootprint,
    activation_footprint,
    autograd_steps,
    saved_elements,
)
from convoy.planning.plan import plan_run


@pytest.mark.parametrize("small", FAMILIES.values(), ids=FAMILIES.keys())
def test_the_stash_after_any_split_of_every_family_matches_autograd(small: Small):
    layers, costs = small.plan.layers, small.plan.costs
    images, labels = images_and_labels(2, small.size)
    modules = build_layers(layers, seed=0)
    for start in range(1, len(layers), 11):
        stash = activation_footprint(layers[start:], costs[start:], None, is_first=False)
        received = _received(layers[:start], images)
        saved = saved_bytes(Slice(layers[start:], modules), received, labels)

        assert saved == 8 * stash.stashed + unplanned_bytes(layers[start:], 2), layers[start].name


@pytest.mark.parametrize("layers", [small_layers(), small_layers("group"), bottleneck_layers()])
def test_the_stash_after_every_split_is_the_input_and_the_saved_tensors(
    layers: tuple[LayerPlan, ...],
):
    images, labels = images_and_labels(2, 16)
    costs = layer_costs(layers, Shape(3, 16))
    modules = build_layers(layers, seed=0)
    for start in range(1, len(layers)):
        stash = activation_footprint(layers[start:], costs[start:], None, is_first=False)
        saved = saved_bytes(
            Slice(layers[start:], modules), _received(layers[:start], images), labels
        )

        assert saved == 8 * stash.stashed + unplanned_bytes(layers[start:], 2), layers[start].name


def _received(before: tuple[LayerPlan, ...], images: Tensor) -> tuple[Tensor, ...]:
    """The outputs of the layers before the split, as leaf tensors."""
    bundle: tuple[Tensor, ...] = build_slice(before)(images)
    return tuple(tensor.detach().clone().requires_grad_() for tensor in bundle)


def small_footprint(starts: list[int] | None) -> ActivationFootprint:
    layers = small_layers()
    return activation_footprint(layers, layer_costs(layers, Shape(3, 32)), starts, is_first=True)


def test_recomputation_stores_inputs_and_outputs():
    stash = small_footprint([0])

    assert stash.stashed == stash.input_elements + stash.output_elements == 3 * 32 * 32 + 10


def test_the_backward_of_one_segment_needs_as_much_as_without_recomputation():
    assert small_footprint([0]).peak_backward == small_footprint(None).peak_backward


def test_segments_reduce_the_peak_of_the_backward():
    names = [layer.name for layer in small_layers()]
    after_blocks = [0, *(index + 1 for index, name in enumerate(names) if name.endswith("/relu"))]

    assert small_footprint(after_blocks).peak_backward < 0.9 * small_footprint(None).peak_backward


def test_a_tensor_of_two_segments_is_stored_once():
    names = [layer.name for layer in small_layers()]
    starts = [0, names.index("layer1/0/bn1"), names.index("layer1/0/conv2")]
    image = 16 * 32 * 32

    assert small_footprint(starts).stashed == 3 * 32 * 32 + 10 + 3 * image  # the side branch once


def test_shared_gradients_are_not_accumulated_in_place():
    layers = (
        LayerPlan("relu", ActivationSpec("relu")),
        LayerPlan("conv", ConvSpec(4, 2, 3), Route.FORK),
    )
    stash = activation_footprint(layers, layer_costs(layers, Shape(4, 5)), None, is_first=False)
    image, output = 4 * 25, 2 * 25
    # Received for both outputs, the new one, and the sum.
    gradients = output + image + image + image

    assert stash.stashed == image + image + output  # relu must not overwrite the input
    assert stash.peak_backward == stash.stashed + gradients


def backward_of(*layers: LayerPlan) -> int:
    """The peak of a stage whose input is 4 × 5 × 5."""
    return activation_footprint(
        layers, layer_costs(layers, Shape(4, 5)), None, is_first=False
    ).peak_backward


def test_the_gradient_of_a_gate_is_as_large_as_the_image_before_it_is_summed():
    gate = (
        LayerPlan("pool", SpatialMeanSpec(), Route.BRANCH),
        LayerPlan("mul", MultiplySpec(), Route.JOIN),
    )
    image, channels = 4 * 25, 4
    saved = image + channels + image  # input, gate, output
    gradients = image + image + channels + image  # received, both new ones, and the product

    assert backward_of(*gate) == saved + gradients


def test_the_gradient_of_a_scale_is_as_large_as_the_image_before_it_is_summed():
    proxy = ProxyActivationSpec(4, "swish", eps=0.03, scaled=False, recompute=False)
    image = 4 * 25
    saved = image + image  # input and output; the scaled and shifted tensor is freed
    gradients = image + image + image + image  # received, intermediate, new, and the product

    assert backward_of(LayerPlan("act", proxy)) == saved + gradients


SEGMENTS = {
    "everything stored": {"enable_recompute": False},
    "one segment": {"enable_recompute": True},
    "blocks": {"enable_recompute": True, "recompute_checkpoints": (r"layer\d/\d",)},
    "everywhere": {"enable_recompute": True, "recompute_checkpoints": (".*",)},
}


@pytest.mark.parametrize("model", ["resnet8", "resnet14", "resnet18"])
@pytest.mark.parametrize("options", SEGMENTS.values(), ids=SEGMENTS.keys())
def test_the_planned_memory_of_one_process_matches(options: dict[str, object], model: str):
    full = {
        "model": model,
        "norm_type": "batch",
        "data": "generated",
        "num_classes": 10,
        "image_size": 32,
        "micro_batch_size": 6,
        "gradient_accumulation": 2,
        **options,
    }
    (planned,) = plan_run(build_config(full)).memory

    assert planned.activations == pytest.approx(measure_single_process(full).activations, rel=0.05)


RECOMPUTE = {
    "everything stored": {"enable_recompute": False},
    "one segment": {"enable_recompute": True},
    "blocks": {"enable_recompute": True, "recompute_checkpoints": (r".*(/add|concat|relu)",)},
    "inside blocks": {"enable_recompute": True, "recompute_checkpoints": (r".*\d",)},
    "everywhere": {"enable_recompute": True, "recompute_checkpoints": (".*",)},
}
# One for each kind of memory use.
SELECTED = (
    "resnet8 pooled",
    "resnet8 strided one pass",
    "efficientnet",
    "efficientnet strided",
    "efficientnet with proxy norm",
    "efficientnet with dropout",
    "mobilenet",
    "squeezenet with bypass",
)


@pytest.mark.parametrize("name", SELECTED)
@pytest.mark.parametrize("recompute", ["everything stored", "blocks"])
def test_the_planned_memory_of_selected_families_matches(name: str, recompute: str):
    assert planned_to_measured_ratio(FAMILIES[name], **RECOMPUTE[recompute]) == pytest.approx(
        1, rel=0.05
    )


@pytest.mark.evidence
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_the_planned_memory_of_every_family_matches(name: str, recompute: str):
    assert planned_to_measured_ratio(FAMILIES[name], **RECOMPUTE[recompute]) == pytest.approx(
        1, rel=0.05
    )


@pytest.mark.parametrize("recompute", ["everything stored", "blocks"])
def test_the_planned_memory_of_proxies_without_recomputation_matches(recompute: str):
    small = FAMILIES["efficientnet with proxy norm"]
    ratio = planned_to_measured_ratio(small, proxy_recompute=False, **RECOMPUTE[recompute])

    assert ratio == pytest.approx(1, rel=0.05)


def planned_to_measured_ratio(small: Small, **options: object) -> float:
    full = {
        "data": "generated",
        "num_classes": 10,
        "image_size": small.size,
        "micro_batch_size": 7,  # no weight has 7 as its first dimension
        "gradient_accumulation": 2,
        **small.options,
        **options,
    }
    (planned,) = plan_run(build_config(full)).memory
    return planned.activations / measure_single_process(full).activations


CONFIGS = [
    NetworkConfig(model=model, norm_type=kind, norm_num_groups=16, shortcut_type=shortcut)
    for model in ("resnet8", "resnet18")
    for kind in ("batch", "group", "none")
    for shortcut in ("A", "B", "C")
] + [NetworkConfig(model="resnet50", norm_type="group", norm_num_groups=32)]


@pytest.mark.parametrize("config", CONFIGS, ids=short_name)
def test_saved_elements_match_autograd_except_for_norm_statistics(config: NetworkConfig):
    layers = resnet_layers(config, 3, CLASSES)
    images, labels = images_and_labels(2, 32)
    network = Slice(layers, build_layers(layers, 0))
    elements = saved_elements(layers, Shape(3, 32))
    planned = 4 * 2 * (Shape(3, 32).elements + sum(elements))

    assert saved_bytes(network, (images,), labels) == planned + unplanned_bytes(layers, samples=2)


@pytest.mark.parametrize("small", FAMILIES.values(), ids=FAMILIES.keys())
def test_saved_elements_of_every_family_match_autograd(small: Small):
    network = small.plan
    images, labels = images_and_labels(2, small.size)
    module = build_slice(network.layers)
    image = Shape(3, small.size)
    planned = 8 * (image.elements + sum(saved_elements(network.layers, image)))
    change = unplanned_bytes(network.layers, samples=2)

    assert saved_bytes(module, (images,), labels) == planned + change


def test_the_input_of_an_addition_is_not_saved():
    layers = small_layers()
    names = [layer.name for layer in layers]
    saved = dict(zip(names, saved_elements(layers, Shape(3, 32)), strict=True))
    plain, halved = 16 * 32 * 32, 32 * 16 * 16

    assert saved["layer1/0/conv2"] == saved["layer1/0/add"] == plain
    assert saved["layer1/0/bn2"] == saved["layer1/0/relu"] == 0
    assert saved["layer2/0/conv1"] == saved["layer2/0/bn1"] == halved
    assert saved["layer2/0/downsample/0"] == 0


def test_channel_padding_saves_no_activations():
    layers = (
        LayerPlan("a", ConvSpec(3, 4, 3)),
        LayerPlan("b", PadChannelsSpec(2, 4)),
        LayerPlan("c", ConvSpec(8, 8, 3)),
    )

    assert saved_elements(layers, Shape(3, 8)) == [0, 8 * 16, 8 * 16]


def test_max_pooling_saves_64_bit_indices():
    layers = (LayerPlan("pool", MaxPoolSpec()), LayerPlan("conv", ConvSpec(4, 4, 3)))
    saved, _ = saved_elements(layers, Shape(4, 10))

    assert saved == 3 * MaxPoolSpec().output_shape(Shape(4, 10)).elements


def test_the_logits_are_saved_for_the_loss():
    assert saved_elements(small_layers(), Shape(3, 32))[-1] == CLASSES


def test_only_relu_works_in_place():
    source = Shape(16, 8)
    in_place = [
        autograd_steps(layer.operation, source)[-1].in_place for layer in small_layers("none")
    ]

    assert in_place == [isinstance(item.operation, ActivationSpec) for item in small_layers("none")]
