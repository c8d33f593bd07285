"""Users' own networks by name, as functions that describe their layers for an image size."""

from collections.abc import Callable

from convoy.config.sections.network import MODELS, USER_FAMILY, ModelEntry
from convoy.models.layers import LayerPlan

_DEFAULT_IMAGE_SIZE = 224

# (image size, number of classes, seed) → layers
DescribeLayers = Callable[[int, int, int], tuple[LayerPlan, ...]]

_USER_NETWORKS: dict[str, DescribeLayers] = {}


def register_user_network(name: str, describe: DescribeLayers) -> None:
    """Make a network known under a name, as a value of `--model`."""
    MODELS.register(name, ModelEntry(USER_FAMILY, 0, _DEFAULT_IMAGE_SIZE))
    _USER_NETWORKS[name] = describe


def user_layers(name: str, image_size: int, classes: int, seed: int) -> tuple[LayerPlan, ...]:
    return _USER_NETWORKS[name](image_size, classes, seed)
