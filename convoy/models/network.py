"""NetworkPlan: the layers of the chosen network and what each costs at the chosen image size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from convoy.config.catalog import DATA, MODELS
from convoy.config.schema import RunConfig
from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.errors import ConfigError
from convoy.models.efficientnet import efficientnet_layers
from convoy.models.layers import (
    ConvSpec,
    LayerCost,
    LayerPlan,
    MaxPoolSpec,
    NormSpec,
    PadChannelsSpec,
    Shape,
    layer_costs,
    taken,
)
from convoy.models.mobilenet import mobilenet_layers
from convoy.models.resnet import resnet_layers
from convoy.models.squeezenet import squeezenet_layers

COLORS = 3
_SMALLER = {380: 252}  # of EfficientNet-B4, where the rule would say 270
LARGEST = 4096  # no network here needs more pixels than this to begin with

FAMILIES: dict[str, Callable[[NetworkConfig, int, int, FamilyConfig], tuple[LayerPlan, ...]]] = {
    "resnet": resnet_layers,
    "resnext": resnet_layers,
    "efficientnet": efficientnet_layers,
    "mobilenet": mobilenet_layers,
    "squeezenet": squeezenet_layers,
}


@dataclass(frozen=True)
class NetworkPlan:
    """A network for images of one size."""

    layers: tuple[LayerPlan, ...]
    costs: tuple[LayerCost, ...]
    image_size: int
    classes: int

    @property
    def parameters(self) -> int:
        return sum(cost.parameters for cost in self.costs)

    @property
    def macs(self) -> int:
        return sum(cost.macs for cost in self.costs)

    def check_micro_batch(self, micro_batch_size: int) -> None:
        """Refuse to train a batch norm on one value per channel: that has no variance."""
        for layer, cost in zip(self.layers, self.costs, strict=True):
            norm = layer.operation
            if not (isinstance(norm, NormSpec) and norm.kind == "batch"):
                continue
            if micro_batch_size * taken(layer.route, cost.bundle_in).size ** 2 == 1:
                raise ConfigError(
                    f"batch norm needs more than one value per channel, but {layer.name} gets 1 "
                    f"pixel of 1 image (--micro-batch-size 1, {self.image_size} × "
                    f"{self.image_size} images); use --micro-batch-size 2 or --norm-type group"
                )


def plan_network(config: RunConfig, size: int | None = None) -> NetworkPlan:
    """The network of a configuration for whole images, which must be large enough for it."""
    model, data = MODELS[config.network.model], DATA[config.data.data]
    classes = config.data.num_classes or data.classes or model.classes
    whole = image_size(config)
    size = size or whole
    layers = FAMILIES[model.family](config.network, COLORS, classes, config.family)
    _refuse_uneven_norms(layers)
    _refuse_small_images(layers, whole, size)
    return NetworkPlan(layers, layer_costs(layers, Shape(COLORS, size)), size, classes)


def plan_training_network(config: RunConfig) -> NetworkPlan:
    """The same layers for the images that it is trained on."""
    whole = image_size(config)
    return plan_network(
        config, smaller_size(whole) if config.fine_tune.half_res_training else whole
    )


def _refuse_uneven_norms(layers: Sequence[LayerPlan]) -> None:
    """The groups of a group norm are equal; the way out fits all norms of the network."""
    norms = {
        layer.name: layer.operation for layer in layers if isinstance(layer.operation, NormSpec)
    }
    for name, norm in norms.items():
        if norm.kind == "group" and norm.channels % norm.groups:
            common = gcd(*(one.channels for one in norms.values()))
            fitting = next(one for one in range(norm.groups, 0, -1) if common % one == 0)
            raise ConfigError(
                f"--norm-num-groups {norm.groups} does not divide the {norm.channels} "
                f"channels of {name}; try {fitting}"
            )


def _refuse_small_images(layers: Sequence[LayerPlan], whole: int, size: int) -> None:
    """`size` is that of the images themselves, or a part of `whole`, which was asked for."""
    problem = _too_small(layers, size)
    if problem is None:
        return
    is_part = size < whole
    larger = ((one, smaller_size(one) if is_part else one) for one in range(whole, LARGEST))
    enough = next(one for one, seen in larger if _too_small(layers, seen) is None)
    part = f"--half-res-training makes it {size}, and " if is_part else ""
    raise ConfigError(
        f"--image-size {whole} is too small: {part}{problem}; it must be at least {enough}"
    )


def _too_small(layers: Sequence[LayerPlan], size: int) -> str | None:
    """The first layer for which an image of this size has shrunk too far."""
    for layer, cost in zip(layers, layer_costs(layers, Shape(COLORS, size)), strict=True):
        given = taken(layer.route, cost.bundle_in).size
        match layer.operation:
            case MaxPoolSpec("none") if given < 3:
                return f"{layer.name} needs 3 × 3 pixels and would get {given} × {given}"
            case MaxPoolSpec() if given == 1:
                return f"{layer.name} would shrink an image of 1 × 1 pixels"
            case ConvSpec(stride=stride) | PadChannelsSpec(stride) if stride > 1 and given == 1:
                return f"{layer.name} would shrink an image of 1 × 1 pixels"
    return None


def image_size(config: RunConfig) -> int:
    """The side of the images: as asked for, or else of the data set, or else of the model."""
    data, model = DATA[config.data.data], MODELS[config.network.model]
    return config.data.image_size or data.image_size or model.image_size


def smaller_size(whole: int) -> int:
    """About five sevenths of it: 160 of 224. What another program used for its networks stays."""
    return _SMALLER.get(whole, whole * 5 // 7 // 2 * 2)
