"""A small network of every family, and of every way to build one; nothing of them is left to chance
unless their name says so."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from convoy.config.schema import build_config
from convoy.models.layers import LayerPlan
from convoy.models.network import NetworkPlan, plan_network
from support.networks import CLASSES


class Small(NamedTuple):
    """A network by its options, and the side of images that are just large enough to be shapely."""

    options: Mapping[str, Any]
    size: int

    @property
    def plan(self) -> NetworkPlan:
        """For ten classes."""
        requested = {"data": "generated", "num_classes": CLASSES, "image_size": self.size}
        return plan_network(build_config({**requested, **self.options}))

    def layers_with(self, **options: Any) -> tuple[LayerPlan, ...]:
        """With some options more."""
        return Small({**self.options, **options}, self.size).plan.layers


# A quarter as wide as B0 and hardly deeper than one block a group: 8 channels and more.
_GATED = {
    "model": "efficientnet-cifar",
    "width_coefficient": 0.25,
    "depth_coefficient": 0.3,
    "block_survival_prob": 1.0,
}
_CERTAIN = {"dropout_rate": 0.0}
_GROUPS = {"norm_type": "group", "norm_num_groups": 4}
_STRIDED = {**_GROUPS, "enable_fast_groupnorm": True}
_ONE_PASS = {"stable_norm": False}

RESNETS = {
    "resnet8 A": Small({"model": "resnet8", "shortcut_type": "A"}, 12),
    "resnet8 pooled": Small({"model": "resnet8", "stem": "large", "conv_padding": "same"}, 18),
    "resnet8 one pass": Small({"model": "resnet8", **_ONE_PASS}, 8),
    "resnet8 strided groups": Small({"model": "resnet8", **_STRIDED}, 8),
    "resnet8 strided one pass": Small({"model": "resnet8", **_STRIDED, **_ONE_PASS}, 8),
    "resnet8 popart": Small(
        {"model": "resnet8", "shortcut_type": "B", "input_image_padding": True}, 8
    ),
    "resnet11 bottleneck": Small({"model": "resnet11", "zero_init_last_norm": False}, 8),
    "resnet11 v1": Small({"model": "resnet11", "resnet_version": "v1"}, 8),
    "resnet14 B": Small({"model": "resnet14", "shortcut_type": "B"}, 8),
    "resnet14 C": Small({"model": "resnet14", "shortcut_type": "C"}, 8),
    "resnet14 first": Small({"model": "resnet14", "shortcut_type": "first"}, 8),
    "resnext11": Small({"model": "resnext11"}, 8),
    "resnext11 wide": Small({"model": "resnext11", "widenet": True}, 4),
}
EFFICIENTNETS = {
    "efficientnet": Small(_GATED, 16),
    "efficientnet groups": Small({**_GATED, **_GROUPS, "group_dim": 8, "expand_ratio": 4}, 9),
    "efficientnet of single pixels": Small({**_GATED, **_GROUPS}, 8),
    "efficientnet strided": Small({**_GATED, **_STRIDED, "conv_padding": "same"}, 8),
    "efficientnet one pass": Small({**_GATED, **_ONE_PASS}, 16),
    "efficientnet without norms": Small({**_GATED, "norm_type": "none"}, 9),
    "efficientnet by proxy": Small({**_GATED, **_GROUPS, "proxy_norm": True}, 9),
    "efficientnet by proxy, without gates": Small(
        {**_GATED, **_GROUPS, "proxy_norm": True, "squeeze_excite": False, "use_relu": True}, 9
    ),
    "efficientnet without gates": Small({**_GATED, "squeeze_excite": False}, 16),
    "efficientnet with rectifiers": Small({**_GATED, "use_relu": True}, 16),
    "efficientnet without top": Small({**_GATED, "top_width": 0, "expand_ratio": 1}, 16),
}
MOBILENETS = {
    "mobilenet": Small({"model": "mobilenet", **_CERTAIN}, 32),
    "mobilenet-v3-small": Small({"model": "mobilenet-v3-small", **_CERTAIN}, 32),
}
SQUEEZENETS = {
    "squeezenet": Small({"model": "squeezenet", **_CERTAIN}, 31),
    "squeezenet with bypass": Small({"model": "squeezenet", **_CERTAIN, "use_bypass": True}, 31),
}
BY_CHANCE = {
    "efficientnet by chance": Small(
        {**_GATED, **_GROUPS, "block_survival_prob": 0.5, "dropout_rate": 0.3}, 9
    ),
    "squeezenet by chance": Small({"model": "squeezenet"}, 31),
}
ALL = RESNETS | EFFICIENTNETS | MOBILENETS | SQUEEZENETS | BY_CHANCE
