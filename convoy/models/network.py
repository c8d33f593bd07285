"""NetworkPlan: the layers of the configured network and their cost at the image size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from convoy.config.schema import RunConfig
from convoy.config.sections.data import DATA
from convoy.config.sections.network import MODELS, USER_FAMILY, FamilyConfig, NetworkConfig
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
    layer_input,
)
from convoy.models.mobilenet import mobilenet_layers
from convoy.models.resnet import resnet_layers
from convoy.models.squeezenet import squeezenet_layers
from convoy.models.user_networks import user_layers

IMAGE_CHANNELS = 3
_TRAIN_SIZES = {380: 252}  # EfficientNet-B4; the rule would give 270
MAX_IMAGE_SIZE = 4096  # no supported network needs a larger minimum

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

    @property
    def work(self) -> int:
        return sum(cost.work for cost in self.costs)

    def check_micro_batch(self, micro_batch_size: int) -> None:
        """Refuse batch norm over a single value per channel: it has no variance."""
        for layer, cost in zip(self.layers, self.costs, strict=True):
            norm = layer.operation
            if not (isinstance(norm, NormSpec) and norm.kind == "batch"):
                continue
            if micro_batch_size * layer_input(layer.route, cost.input_shapes).size ** 2 == 1:
                raise ConfigError(
                    f"batch norm needs more than one value per channel, but {layer.name} gets 1 "
                    f"pixel of 1 image (--micro-batch-size 1, {self.image_size} × "
                    f"{self.image_size} images); use --micro-batch-size 2 or --norm-type group"
                )


def plan_network(config: RunConfig, size: int | None = None) -> NetworkPlan:
    """Plan the configured network for full-size images, or for images of `size`."""
    model, data = MODELS[config.network.model], DATA[config.data.data]
    classes = config.data.num_classes or data.classes or model.classes
    full_size = image_size(config)
    size = size or full_size
    if model.family == USER_FAMILY:
        layers = user_layers(config.network.model, size, classes, config.data.seed)
    else:
        layers = FAMILIES[model.family](config.network, IMAGE_CHANNELS, classes, config.family)
    _check_norm_groups(layers)
    _check_image_size(layers, full_size, size)
    return NetworkPlan(layers, layer_costs(layers, Shape(IMAGE_CHANNELS, size)), size, classes)


def plan_training_network(config: RunConfig) -> NetworkPlan:
    """Plan the network for the images it is trained on; see `--half-res-training`."""
    half_res = config.fine_tune.half_res_training
    return plan_network(config, reduced_size(image_size(config)) if half_res else None)


def _check_norm_groups(layers: Sequence[LayerPlan]) -> None:
    """Refuse groups that do not divide the channels; suggest a count that fits all norms."""
    norms = {
        layer.name: layer.operation for layer in layers if isinstance(layer.operation, NormSpec)
    }
    for name, norm in norms.items():
        if norm.kind == "group" and norm.channels % norm.groups:
            common = gcd(*(norm.channels for norm in norms.values()))
            fitting = next(count for count in range(norm.groups, 0, -1) if common % count == 0)
            raise ConfigError(
                f"--norm-num-groups {norm.groups} does not divide the {norm.channels} "
                f"channels of {name}; try {fitting}"
            )


def _check_image_size(layers: Sequence[LayerPlan], full_size: int, size: int) -> None:
    """Refuse images that are too small; `size` is the (possibly reduced) training size."""
    problem = _size_problem(layers, size)
    if problem is None:
        return
    is_reduced = size < full_size
    larger = range(full_size, MAX_IMAGE_SIZE)
    train_sizes = ((side, reduced_size(side) if is_reduced else side) for side in larger)
    enough = next(side for side, trained in train_sizes if _size_problem(layers, trained) is None)
    reason = f"--half-res-training reduces it to {size}, and " if is_reduced else ""
    raise ConfigError(
        f"--image-size {full_size} is too small: {reason}{problem}; it must be at least {enough}"
    )


def _size_problem(layers: Sequence[LayerPlan], size: int) -> str | None:
    """Describe the first layer whose input would be too small, if any."""
    for layer, cost in zip(layers, layer_costs(layers, Shape(IMAGE_CHANNELS, size)), strict=True):
        side = layer_input(layer.route, cost.input_shapes).size
        match layer.operation:
            case MaxPoolSpec("none") if side < 3:
                return (
                    f"{layer.name} needs an input of at least 3 × 3, but would get {side} × {side}"
                )
            case MaxPoolSpec() if side == 1:
                return f"{layer.name} would downsample a 1 × 1 feature map"
            case ConvSpec(stride=stride) | PadChannelsSpec(stride) if stride > 1 and side == 1:
                return f"{layer.name} would downsample a 1 × 1 feature map"
    return None


def image_size(config: RunConfig) -> int:
    """Image size: `--image-size`, or the default of the dataset, or of the model."""
    data, model = DATA[config.data.data], MODELS[config.network.model]
    return config.data.image_size or data.image_size or model.image_size


def reduced_size(full_size: int) -> int:
    """Five sevenths, rounded down to even (224 → 160), with the exceptions of the reference."""
    return _TRAIN_SIZES.get(full_size, full_size * 5 // 7 // 2 * 2)
