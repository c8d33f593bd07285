"""A trained network for prediction, with its class names and its preprocessing."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from convoy.checkpoint.format import JSON, check_match
from convoy.checkpoint.store import find_checkpoint
from convoy.config.schema import RunConfig
from convoy.config.sections.parallel import DeviceConfig
from convoy.data.preprocessing import ImageInput as ImageInput
from convoy.data.preprocessing import ImageTransform, Preprocessing
from convoy.data.source import Source
from convoy.data.sources.photos import IMAGENET_NORMALIZATION
from convoy.errors import CheckpointError
from convoy.models.layers import NormSpec
from convoy.models.network import NetworkPlan, plan_network
from convoy.run.parameter_groups import build_network_for_precision, round_weights
from convoy.run.process import choose_device
from convoy.run.validation import InferenceNetwork

_CLASSES, _PREPROCESSING = "classes", "preprocessing"  # keys in the state of a checkpoint


def prediction_metadata(source: Source, config: RunConfig, network: NetworkPlan) -> dict[str, JSON]:
    """What a checkpoint stores for prediction."""
    preprocessing = Preprocessing.of(source, config.data, network.image_size)
    return _to_metadata(source.class_names, network, preprocessing)


def imagenet_metadata(network: NetworkPlan) -> dict[str, JSON]:
    """The same for imported weights, whose class names are not known."""
    mean, std = IMAGENET_NORMALIZATION.mean, IMAGENET_NORMALIZATION.std
    return _to_metadata((), network, Preprocessing(network.image_size, "center", mean, std))


def _to_metadata(
    names: tuple[str, ...], network: NetworkPlan, preprocessing: Preprocessing | None
) -> dict[str, JSON]:
    unnamed = range(len(names), network.classes)
    return {
        _CLASSES: [*names, *(f"class {index}" for index in unnamed)],
        _PREPROCESSING: None if preprocessing is None else preprocessing.to_json(),
    }


def describe_for_prediction(
    config: RunConfig, network: NetworkPlan, state: Mapping[str, JSON]
) -> dict[str, JSON]:
    """What an exported file contains for prediction without convoy.

    An image is resized until its shorter side has `resize` pixels, cropped to `image_size` at its
    center, divided by 255, and normalized with `mean` and `std`. They are None if the dataset of
    the run did its own preprocessing.
    """
    values = state.get(_PREPROCESSING)
    preprocessing = Preprocessing.from_json(values) if isinstance(values, dict) else None
    size, resize, crop, mean, std = network.image_size, None, None, None, None
    if preprocessing is not None:
        size, crop = preprocessing.image_size, preprocessing.crop
        resize = size if crop == "none" else size * 256 // 224
        # Pixels that are not normalized are 0 … 255.
        mean, std = preprocessing.mean or (0.0,) * 3, preprocessing.std or (1 / 255,) * 3
    has_norms = any(isinstance(layer.operation, NormSpec) for layer in network.layers)
    return {
        "model": config.network.model,
        "classes": state.get(_CLASSES) or [f"class {index}" for index in range(network.classes)],
        "image_size": size,
        "resize": resize,
        "crop": crop,
        "mean": None if mean is None else list(mean),
        "std": None if std is None else list(std),
        "norm_eps": config.network.norm_eps if has_norms else None,
    }


class ImageClassifier(nn.Module):
    """A trained network in eval mode: images (batch, 3, height, width) to logits.

    `classes` are the names of the outputs, in order. `transform` turns an image into a tensor as
    validation does; it is None if the dataset of the run does this itself.
    """

    def __init__(
        self, network: nn.Module, classes: tuple[str, ...], transform: ImageTransform | None
    ) -> None:
        super().__init__()
        self.network = network
        self.classes = classes
        self.transform = transform
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (batch, classes)."""
        logits: Tensor
        (logits,) = self.network(images.contiguous(memory_format=torch.channels_last))
        return logits


def load_classifier(
    config: RunConfig, source: Path, device: DeviceConfig, fold_batch_norm: bool = True
) -> ImageClassifier:
    """Load the checkpoint at a path, or the newest valid one of a run."""
    checkpoint, plan = find_checkpoint(source), plan_network(config)
    network = build_network_for_precision(config, plan, choose_device(device))
    check_match(checkpoint.contents.model, network.tensors())
    network.load(checkpoint.contents.model)
    round_weights(config, network)
    classes, transform = _read_metadata(checkpoint.path, checkpoint.contents.state)
    module: nn.Module = network.slice
    if fold_batch_norm:
        module = InferenceNetwork(plan, network, "torch").module
    return ImageClassifier(module, classes, transform)


def _read_metadata(
    path: Path, state: Mapping[str, JSON]
) -> tuple[tuple[str, ...], ImageTransform | None]:
    classes, preprocessing = state.get(_CLASSES), state.get(_PREPROCESSING)
    if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise CheckpointError(f"{path} has no class names; it was saved by another version")
    names = tuple(map(str, classes))
    if preprocessing is None:
        return names, None
    try:
        values = preprocessing if isinstance(preprocessing, dict) else {}
        return names, ImageTransform(Preprocessing.from_json(values))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
