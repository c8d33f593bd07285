"""NetworkPlan: the layers of the chosen network and what each costs at the chosen image size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from convoy.config.catalog import DATA, MODELS
from convoy.config.schema import RunConfig
from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.errors import ConfigError
from convoy.plan.efficientnet import efficientnet_layers
from convoy.plan.layers import LayerCost, LayerPlan, layer_costs, put, taken
from convoy.plan.mobilenet import mobilenet_layers
from convoy.plan.operations import Norm
from convoy.plan.resnet import resnet_layers
from convoy.plan.squeezenet import squeezenet_layers
from convoy.plan.steps import Shape

COLORS = 3
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
            if not (isinstance(norm, Norm) and norm.kind == "batch"):
                continue
            if micro_batch_size * taken(layer.route, cost.bundle_in).size ** 2 == 1:
                raise ConfigError(
                    f"batch norm needs more than one value per channel, but {layer.name} gets 1 "
                    f"pixel of 1 image (--micro-batch-size 1, {self.image_size} × "
                    f"{self.image_size} images); use --micro-batch-size 2 or --norm-type group"
                )


def plan_network(config: RunConfig) -> NetworkPlan:
    """The network of a configuration, for images that are large enough for it."""
    family = FAMILIES[MODELS[config.network.model].family]
    size, classes = image_size(config), classes_of(config)
    layers = family(config.network, COLORS, classes, config.family)
    _refuse_uneven_norms(layers)
    _refuse_small_images(layers, size)
    return NetworkPlan(layers, layer_costs(layers, Shape(COLORS, size)), size, classes)


def _refuse_uneven_norms(layers: Sequence[LayerPlan]) -> None:
    """The groups of a group norm are equal; the way out fits all norms of the network."""
    norms = {layer.name: layer.operation for layer in layers if isinstance(layer.operation, Norm)}
    for name, norm in norms.items():
        if norm.kind == "group" and norm.channels % norm.groups:
            common = gcd(*(one.channels for one in norms.values()))
            fitting = next(one for one in range(norm.groups, 0, -1) if common % one == 0)
            raise ConfigError(
                f"--norm-num-groups {norm.groups} does not divide the {norm.channels} "
                f"channels of {name}; try {fitting}"
            )


def _refuse_small_images(layers: Sequence[LayerPlan], size: int) -> None:
    problem = _too_small(layers, size)
    if problem is None:
        return
    enough = next(one for one in range(size, LARGEST) if _too_small(layers, one) is None)
    raise ConfigError(f"--image-size {size} is too small: {problem}; it must be at least {enough}")


def _too_small(layers: Sequence[LayerPlan], size: int) -> str | None:
    """The first layer for which an image of this size has shrunk too far."""
    bundle: tuple[Shape, ...] = (Shape(COLORS, size),)
    for layer in layers:
        given = taken(layer.route, bundle)
        problem = layer.operation.problem(given)
        if problem is not None:
            return f"{layer.name} {problem}"
        bundle = put(layer.route, bundle, layer.operation.shape(given))
    return None


def image_size(config: RunConfig) -> int:
    """The side of the images: as asked for, or else of the data set, or else of the model."""
    data, model = DATA[config.data.data], MODELS[config.network.model]
    return config.data.image_size or data.image_size or model.image_size


def classes_of(config: RunConfig) -> int:
    """The classes of the data set; where it has no number of its own, asked for or the model's."""
    data, model = DATA[config.data.data], MODELS[config.network.model]
    return data.classes or config.data.num_classes or model.classes
