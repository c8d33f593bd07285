"""Preprocess single images for prediction, exactly as validation does."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from convoy.config.sections.data import DataConfig
from convoy.data.images.crop import CenterRule, center_crop, center_rule
from convoy.data.images.decode import ImageError, decode, read_header
from convoy.data.images.resize import crop_window, load_center_crop, resize_antialiased
from convoy.data.loader import DeviceTransfer
from convoy.data.source import Normalization, Pixels, Source
from convoy.data.sources.pixel_source import PixelSource
from convoy.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

ImageInput: TypeAlias = "str | os.PathLike[str] | bytes | PillowImage | npt.NDArray[Any] | Tensor"


Crop = CenterRule | Literal["none"]


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the input of a network."""

    image_size: int  # height and width
    crop: Crop  # center: resize the shorter side to 256/224 of the size first
    mean: tuple[float, ...] | None  # of each channel, for pixels in 0 … 1; None: not normalized
    std: tuple[float, ...] | None

    @classmethod
    def of(cls, source: Source, config: DataConfig, image_size: int) -> "Preprocessing | None":
        """The preprocessing of a dataset in validation; None if the dataset does it itself."""
        if source.is_normalized:
            return None
        crop: Crop = "none" if isinstance(source, PixelSource) else center_rule(config.crop_rule)
        if config.normalization_location == "none":
            return cls(image_size, crop, None, None)
        values = source.normalization if config.normalize_std else source.mean_normalization
        return cls(image_size, crop, values.mean, values.std)

    def to_json(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """Read the values of `to_json`; raise ValueError if they are not valid."""
        match values:
            case {
                "image_size": int(size),
                "crop": "center" | "center-floor" | "none" as crop,
                "mean": None,
            }:
                return cls(size, crop, None, None)
            case {
                "image_size": int(size),
                "crop": "center" | "center-floor" | "none" as crop,
                "mean": [float(), float(), float()] as mean,
                "std": [float(), float(), float()] as std,
            }:
                return cls(size, crop, tuple(mean), tuple(std))
        raise ValueError(f"invalid preprocessing: {values!r:.200}")


class ImageTransform:
    """Turns an image into a tensor (3, height, width), as validation does.

    An image is a path, the bytes of a file, a PIL image, or an array or tensor of bytes: (height,
    width, 3), or (height, width) for gray.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self.image_size = preprocessing.image_size
        normalization = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        if preprocessing.mean is not None and preprocessing.std is not None:
            normalization = Normalization(_triple(preprocessing.mean), _triple(preprocessing.std))
        location = "none" if preprocessing.mean is None else "host"
        self._transfer = DeviceTransfer(normalization, location, torch.device("cpu"))

    def __repr__(self) -> str:
        values = self.preprocessing
        return (
            f"ImageTransform(image_size={values.image_size}, crop={values.crop!r}, "
            f"mean={values.mean}, std={values.std})"
        )

    def __call__(self, image: ImageInput) -> Tensor:
        """Raises DataError if the image cannot be read."""
        return self.normalize_batch([self.pixels(image)])[0]

    def pixels(self, image: ImageInput) -> Pixels:
        """The cropped and resized pixels before normalization: (size, size, 3) bytes."""
        out = np.empty((self.image_size, self.image_size, 3), np.uint8)
        if isinstance(image, str | os.PathLike):
            try:
                self._decode_into(Path(image).read_bytes(), out)
            except OSError as error:
                raise DataError(f"{os.fspath(image)}: {error.strerror or error}") from error
            except ImageError as error:
                raise DataError(f"{os.fspath(image)}: {error}") from error
            except ValueError as error:  # a path with a null byte
                raise DataError(f"{os.fspath(image)!r}: {error}") from error
        elif isinstance(image, bytes | bytearray | memoryview):
            try:
                self._decode_into(bytes(image), out)
            except ImageError as error:
                raise DataError(str(error)) from error
        else:
            self._resize_into(to_pixels(image), out)
        return out

    def normalize_batch(self, pixels: Sequence[Pixels]) -> Tensor:
        """Convert the pixels of several images to the input of the network, channels first."""
        buffer = self._transfer.allocate(len(pixels), self.image_size)
        self._transfer.normalize_into(buffer, np.stack(pixels))
        return self._transfer.to_device(buffer)

    def _decode_into(self, encoded: bytes, out: Pixels) -> None:
        rule = self.preprocessing.crop
        if rule == "none":
            self._resize_into(decode(encoded, read_header(encoded)), out)
        else:
            load_center_crop(encoded, self.image_size, out, rule)

    def _resize_into(self, pixels: Pixels, out: Pixels) -> None:
        """Crop and resize decoded pixels; without a crop rule, only if the size differs."""
        if pixels.shape == out.shape and self.preprocessing.crop == "none":
            np.copyto(out, pixels)
            return
        height, width, _ = pixels.shape
        size, rule = self.image_size, self.preprocessing.crop
        if rule == "none":
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
            resize_antialiased(pixels[top : top + side, left : left + side], out)
            return
        plan = center_crop(height, width, size, rule)
        resized = np.empty((plan.height, plan.width, 3), np.uint8)
        resize_antialiased(crop_window(pixels, plan.source_window), resized)
        np.copyto(out, resized[plan.top : plan.top + size, plan.left : plan.left + size])


def _triple(values: tuple[float, ...]) -> tuple[float, float, float]:
    red, green, blue = values
    return red, green, blue


def to_pixels(image: Any) -> Pixels:
    """Convert a PIL image, array or tensor to (height, width, 3) bytes."""
    if isinstance(image, Tensor):
        image = image.detach().cpu().numpy()
    if not isinstance(image, np.ndarray):
        if not hasattr(image, "convert"):
            raise DataError(
                f"{type(image).__name__} is not an image; pass a path, the bytes of a file, a PIL "
                "image, or a uint8 array of shape (height, width, 3)"
            )
        return _pillow_pixels(image)
    if image.dtype != np.uint8:
        raise DataError(
            f"an image as an array needs dtype uint8, got {image.dtype}; scale it to 0…255, or "
            "preprocess it yourself and pass a float tensor (3, height, width) to the network"
        )
    if image.ndim == 2 and image.size:
        return np.repeat(image[:, :, None], 3, axis=2)
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise DataError(f"an image as an array has the shape (height, width, 3), got {image.shape}")
    return image


def _pillow_pixels(image: Any) -> Pixels:
    """Pillow clips values above 255, so more than 8 bits are scaled as when a file is decoded."""
    if image.mode.startswith("I;16"):
        return to_pixels((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(
            f"a PIL image with mode {image.mode} has no fixed range; scale it to 0…255 and convert "
            "it to RGB"
        )
    return np.asarray(image.convert("RGB"))
