"""NetworkPlan: the layers of the chosen network and what each costs at the chosen image size."""

from collections.abc import Callable
from dataclasses import dataclass

from convoy.config.catalog import DATA, MODELS
from convoy.config.schema import RunConfig
from convoy.config.sections.network import NetworkConfig
from convoy.errors import ConfigError
from convoy.plan.layers import LayerCost, LayerPlan, Norm, Shape, layer_costs, taken
from convoy.plan.resnet import resnet_layers

COLORS = 3

FAMILIES: dict[str, Callable[[NetworkConfig, int, int], tuple[LayerPlan, ...]]] = {
    "resnet": resnet_layers,
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
    """The network of a configuration, if this version can build it."""
    name = config.network.model
    if not MODELS[name].built:
        raise ConfigError(
            f"--model {name} is not available in this version; `convoy models` lists those that are"
        )
    size, classes = image_size(config), classes_of(config)
    layers = FAMILIES[MODELS[name].family](config.network, COLORS, classes)
    return NetworkPlan(layers, layer_costs(layers, Shape(COLORS, size)), size, classes)


def image_size(config: RunConfig) -> int:
    """The side of the images: as asked for, or else of the data set, or else of the model."""
    data, model = DATA[config.data.data], MODELS[config.network.model]
    return config.data.image_size or data.image_size or model.image_size


def classes_of(config: RunConfig) -> int:
    """The classes of the data set; where it has no number of its own, asked for or the model's."""
    data, model = DATA[config.data.data], MODELS[config.network.model]
    return data.classes or config.data.num_classes or model.classes
