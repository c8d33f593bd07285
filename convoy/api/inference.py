"""Load a trained network, and predict the classes of images."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch

from convoy.api.checkpoints import resolve_without_data
from convoy.api.requests import (
    PathLike,
    options_from_keywords,
    register_objects,
    settings_without_dataset,
)
from convoy.api.runs import own_torch_settings
from convoy.config.sections.parallel import DeviceConfig
from convoy.errors import ConfigError, DataError

if TYPE_CHECKING:
    from convoy.run.prediction import ImageClassifier, ImageInput
    from convoy.run.user_code import NetworkSource

Device = Literal["auto", "cpu", "cuda", "mps"]


def load(
    source: PathLike,
    *,
    model: "str | NetworkSource | None" = None,
    device: Device = "cpu",
    fold_batch_norm: bool = True,
) -> "ImageClassifier":
    """Load the network of a run or a checkpoint as a `torch.nn.Module` in eval mode.

    Its logits are those that `convoy validate` computes. `model.classes` are the class names, and
    `model.transform` turns an image (path, bytes, PIL image or array) into a tensor exactly as
    validation does. The module works with `torch.compile`, `torch.export` and `copy.deepcopy`.

    Args:
        source: A run, whose newest valid checkpoint is loaded, or a checkpoint.
        model: Your own network, as for `train`, if the run has one. Its weights do not matter. The
            dataset is not needed.
        device: Where to run the network.
        fold_batch_norm: Fold batch norm into the convolutions, as `convoy validate` does. Without
            it the module has the layers and weights of the run, for example to fine-tune it.
    """
    from convoy.run.prediction import load_classifier

    if device not in get_args(Device):
        raise ConfigError(f"device must be one of {', '.join(get_args(Device))}, got {device!r}")
    path = Path(source)
    run = settings_without_dataset(path)
    if not run:
        raise ConfigError(f"{path} is not in a run folder, so its network is not known")
    with own_torch_settings():
        _, names = register_objects(model, None)
        options = options_from_keywords(names)
        config = resolve_without_data(options.to_request(run_settings=run)).config
        return load_classifier(config, path, DeviceConfig(device=device), fold_batch_norm)


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one image, the most likely first."""

    image: str  # its path, or its position in the given images
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def label(self) -> str:
        """The most likely class."""
        return self.classes[0]


def predict(
    source: "PathLike | ImageClassifier",
    images: "ImageInput | Iterable[ImageInput]",
    *,
    top_k: int = 5,
    batch_size: int = 32,
    device: Device = "cpu",
) -> list[Prediction]:
    """Predict the classes of images.

    Args:
        source: A run, a checkpoint, or a network from `load`.
        images: One image or several: paths, bytes of files, PIL images or arrays.
        top_k: Number of classes to return for each image.
        batch_size: Number of images to run at a time.
        device: Device to load the network to; a network from `load` stays on its device.

    Raises:
        DataError: An image cannot be read.
    """
    from convoy.run.prediction import ImageClassifier

    model = source if isinstance(source, ImageClassifier) else load(source, device=device)
    predictions = []
    with own_torch_settings():
        for result in predict_batches(model, _as_list(images), top_k, batch_size):
            if isinstance(result, DataError):
                raise result
            predictions.append(result)
    return predictions


def _as_list(images: "ImageInput | Iterable[ImageInput]") -> "list[ImageInput]":
    """Several images are a list, a tuple or an iterator; anything else is one."""
    if isinstance(images, list | tuple | Iterator):
        return list(images)
    return [images]  # type: ignore[list-item]  # checked by the transform


@torch.inference_mode()
def predict_batches(
    model: "ImageClassifier", images: "Sequence[ImageInput]", top_k: int, batch_size: int
) -> Iterator[Prediction | DataError]:
    """Yield a prediction, or the error, for each image, in order."""
    if not (isinstance(top_k, int) and isinstance(batch_size, int)):
        raise TypeError(f"top_k and batch_size must be integers, got {top_k!r} and {batch_size!r}")
    if top_k < 1 or batch_size < 1:
        raise ConfigError(f"top_k and batch_size must be at least 1, got {top_k} and {batch_size}")
    if model.transform is None:
        raise ConfigError(
            "this network was trained on the tensors of your own dataset, so its preprocessing is "
            "not known; apply your transform and call the network"
        )
    device = next(iter(model.state_dict().values())).device
    numbered = iter(enumerate(images))
    while batch := list(islice(numbered, batch_size)):
        results: dict[int, Prediction | DataError] = {}
        pixels = {}
        for number, image in batch:
            try:
                pixels[number] = model.transform.pixels(image)
            except DataError as error:
                results[number] = error
        if pixels:
            inputs = model.transform.normalize_batch(list(pixels.values())).to(device)
            likely = model(inputs).float().softmax(1).cpu().topk(min(top_k, len(model.classes)))
            for number, values, indices in zip(pixels, *likely, strict=True):
                names = tuple(model.classes[index] for index in indices.tolist())
                name = _image_name(number, images[number])
                results[number] = Prediction(name, names, tuple(values.tolist()))
        yield from (results[number] for number, _ in batch)


def _image_name(number: int, image: "ImageInput") -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else str(number)
