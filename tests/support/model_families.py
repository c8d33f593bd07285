"""Small networks of every family and variant. Only those in `RANDOM` use dropout."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from convoy.config.schema import build_config
from convoy.models.layers import LayerPlan
from convoy.models.network import NetworkPlan, plan_network
from support.networks import CLASSES


class Small(NamedTuple):
    """The options of a network, and the smallest image size at which no feature map degenerates."""

    options: Mapping[str, Any]
    size: int

    @property
    def plan(self) -> NetworkPlan:
        """The network for ten classes."""
        requested = {"data": "generated", "num_classes": CLASSES, "image_size": self.size}
        return plan_network(build_config({**requested, **self.options}))

    def layers_with(self, **options: Any) -> tuple[LayerPlan, ...]:
        """The layers with additional options."""
        return Small({**self.options, **options}, self.size).plan.layers


# A quarter of the width of B0, and about one block per group.
_EFFICIENTNET = {
    "model": "efficientnet-cifar",
    "width_coefficient": 0.25,
    "depth_coefficient": 0.3,
    "block_survival_prob": 1.0,
}
_NO_DROPOUT = {"dropout_rate": 0.0}
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
    "efficientnet": Small(_EFFICIENTNET, 16),
    "efficientnet groups": Small(
        {**_EFFICIENTNET, **_GROUPS, "group_dim": 8, "expand_ratio": 4}, 9
    ),
    "efficientnet of single pixels": Small({**_EFFICIENTNET, **_GROUPS}, 8),
    "efficientnet strided": Small({**_EFFICIENTNET, **_STRIDED, "conv_padding": "same"}, 8),
    "efficientnet one pass": Small({**_EFFICIENTNET, **_ONE_PASS}, 16),
    "efficientnet without norms": Small({**_EFFICIENTNET, "norm_type": "none"}, 9),
    "efficientnet with proxy norm": Small({**_EFFICIENTNET, **_GROUPS, "proxy_norm": True}, 9),
    "efficientnet with proxy norm, without gates": Small(
        {**_EFFICIENTNET, **_GROUPS, "proxy_norm": True, "squeeze_excite": False, "use_relu": True},
        9,
    ),
    "efficientnet without gates": Small({**_EFFICIENTNET, "squeeze_excite": False}, 16),
    "efficientnet with relu": Small({**_EFFICIENTNET, "use_relu": True}, 16),
    "efficientnet without top": Small({**_EFFICIENTNET, "top_width": 0, "expand_ratio": 1}, 16),
}
MOBILENETS = {
    "mobilenet": Small({"model": "mobilenet", **_NO_DROPOUT}, 32),
    "mobilenet-v3-small": Small({"model": "mobilenet-v3-small", **_NO_DROPOUT}, 32),
}
SQUEEZENETS = {
    "squeezenet": Small({"model": "squeezenet", **_NO_DROPOUT}, 31),
    "squeezenet with bypass": Small({"model": "squeezenet", **_NO_DROPOUT, "use_bypass": True}, 31),
}
RANDOM = {
    "efficientnet with dropout": Small(
        {**_EFFICIENTNET, **_GROUPS, "block_survival_prob": 0.5, "dropout_rate": 0.3}, 9
    ),
    "squeezenet with dropout": Small({"model": "squeezenet"}, 31),
}
ALL = RESNETS | EFFICIENTNETS | MOBILENETS | SQUEEZENETS | RANDOM
