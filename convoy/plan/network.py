"""NetworkPlan: the layers of the chosen network and what each costs at the chosen image size."""

from collections.abc import Callable
from dataclasses import dataclass

from convoy.config.catalog import DATA, MODELS
from convoy.config.schema import RunConfig
from convoy.config.sections.network import NetworkConfig
from convoy.plan.layers import LayerCost, LayerPlan, Shape, layer_costs
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


def plan_network(config: RunConfig) -> NetworkPlan:
    """The network of a configuration; size and classes follow data and model unless given."""
    model, data = MODELS[config.network.model], DATA[config.data.data]
    size = config.data.image_size or data.image_size or model.image_size
    classes = data.classes or config.data.num_classes or model.classes
    layers = FAMILIES[model.family](config.network, COLORS, classes)
    return NetworkPlan(layers, layer_costs(layers, Shape(COLORS, size)), size, classes)
