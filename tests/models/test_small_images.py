"""Images that are too small are refused with the minimum size."""

import pytest
import torch
from support.model_families import Small
from support.networks import build_slice

from convoy.config.sections.network import MODELS
from convoy.errors import ConfigError

# Each stride needs two pixels, a pool without padding three.
MIN_SIZES = {
    "resnet8": 3,
    "resnet11": 3,
    "resnet18": 17,
    "resnet50": 17,
    "resnext29": 3,
    "resnext50": 17,
    "efficientnet-cifar": 5,
    "efficientnet-b0": 17,
    "efficientnet-b7": 17,
    "mobilenet": 17,
    "mobilenet-v3-small": 17,
    "mobilenet-v3-large": 17,
    "squeezenet": 29,
}


def error_for(model: str, size: int) -> str:
    with pytest.raises(ConfigError) as refused:
        Small({"model": model}, size).plan  # noqa: B018
    return str(refused.value)


@pytest.mark.parametrize(("model", "min_size"), MIN_SIZES.items())
def test_the_suggested_image_size_is_the_minimum(model: str, min_size: int):
    for size in (2, min_size - 1):
        message = error_for(model, size)

        assert message.startswith(f"--image-size {size} is too small: ")
        assert message.endswith(f"; it must be at least {min_size}")
    assert Small({"model": model}, min_size).plan.image_size == min_size


@pytest.mark.parametrize("model", ["resnet18", "efficientnet-cifar", "mobilenet", "squeezenet"])
def test_the_network_runs_at_its_minimum_image_size(model: str):
    layers = Small({"model": model}, MIN_SIZES[model]).plan.layers
    images = torch.randn(2, 3, MIN_SIZES[model], MIN_SIZES[model], generator=torch.Generator())
    (logits,) = build_slice(layers).eval()(images)

    assert logits.shape == (2, 10)


def test_the_first_layer_that_has_too_few_pixels_is_named():
    assert "layer4/0/conv2 would downsample a 1 × 1 feature map" in error_for("resnet50", 16)
    assert "blocks/5/0/conv_dw would downsample" in error_for("efficientnet-b0", 16)
    assert "pool8 needs an input of at least 3 × 3, but would get 2 × 2" in error_for(
        "squeezenet", 28
    )


def test_every_model_accepts_its_default_image_size():
    assert all(Small({"model": name}, MODELS[name].image_size).plan.layers for name in MODELS)
