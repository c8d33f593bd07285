"""A slice of the network: consecutive named layers, run over a bundle of tensors."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from convoy.plan.layers import LayerPlan, Route

Bundle = tuple[Tensor, ...]


class Slice(nn.Module):
    """The layers of one stage. Takes a bundle and returns one; see `plan/layers.py` for routes."""

    def __init__(self, layers: Sequence[LayerPlan], modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        chosen = {layer.name: modules[layer.name] for layer in layers}
        first = layers[0].name
        if isinstance(chosen[first], nn.ReLU):
            chosen[first] = nn.ReLU()  # never in place: what comes in belongs to the sender
        self.layers = nn.ModuleDict(chosen)
        self.routes = [layer.route for layer in layers]

    def forward(self, *bundle: Tensor) -> Bundle:
        for layer, route in zip(self.layers.values(), self.routes, strict=True):
            bundle = _pass(layer, route, bundle)
        return bundle

    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers, named without regard to stages: `layer1.0.conv1.weight`."""
        return {_plain(name): tensor for name, tensor in self.state_dict(keep_vars=True).items()}

    def named_weights(self) -> dict[str, nn.Parameter]:
        """The parameters alone, under the same names."""
        return {_plain(name): weight for name, weight in self.named_parameters()}


def _pass(layer: nn.Module, route: Route, bundle: Bundle) -> Bundle:
    match route:
        case Route.MAIN:
            return (layer(bundle[0]), *bundle[1:])
        case Route.FORK:
            return (layer(bundle[0]), *bundle)
        case Route.SIDE:
            return (bundle[0], layer(bundle[1]), *bundle[2:])
        case Route.JOIN:
            return (layer(bundle[0], bundle[1]), *bundle[2:])


def _plain(name: str) -> str:
    return name.removeprefix("layers.").replace("/", ".")
