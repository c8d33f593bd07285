"""Where the published weights of our networks lie: what a bare `--pretrained` means.

Only networks that are the same to the last layer; eps and image size are those of their authors.
"""

from convoy.errors import ConfigError

PUBLISHED = "published"

_ON_THE_HUB = {
    "resnet18": "hf:timm/resnet18.tv_in1k",
    "resnet34": "hf:timm/resnet34.tv_in1k",
    "resnet50": "hf:timm/resnet50.tv_in1k",
    "resnet101": "hf:timm/resnet101.tv_in1k",
    "resnet152": "hf:timm/resnet152.tv_in1k",
    "resnext50": "hf:timm/resnext50_32x4d.tv_in1k",
    "efficientnet-b0": "hf:timm/efficientnet_b0.ra_in1k",
    "efficientnet-b1": "hf:timm/efficientnet_b1.ft_in1k",
    "efficientnet-b2": "hf:timm/efficientnet_b2.ra_in1k",
    "efficientnet-b3": "hf:timm/efficientnet_b3.ra2_in1k",
    "efficientnet-b4": "hf:timm/efficientnet_b4.ra2_in1k",
    "mobilenet": "hf:timm/mobilenetv2_100.ra_in1k",
    "mobilenet-v3-large-published": "hf:timm/mobilenetv3_large_100.ra_in1k",
    "mobilenet-v3-small-published": "hf:timm/mobilenetv3_small_100.lamb_in1k",
}


def published(model: str) -> str:
    """The place of a network's published weights."""
    if model not in _ON_THE_HUB:
        raise ConfigError(
            f"no published weights are known for {model}, only for {', '.join(_ON_THE_HUB)}; "
            "give a file: --pretrained FILE"
        )
    return _ON_THE_HUB[model]
