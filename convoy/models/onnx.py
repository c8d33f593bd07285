"""A network as an ONNX model, and answers by ONNX Runtime. Both are optional packages."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from convoy.errors import ConfigError

BATCH = "batch"  # the name of the dimension that is left open


def as_onnx(network: nn.Module, example: Tensor) -> bytes:
    """A network of one tensor in and one out, for any number of samples like the example's.

    It answers as it would in use: dropout off, norms with their running statistics.
    """
    for package in ("onnx", "onnxscript"):
        optional(package)
    was_training = network.training
    with _quietly():
        program = torch.onnx.export(
            network.eval(),
            (_several(example),),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim(BATCH)},),
            dynamo=True,
            verbose=False,
        )
    network.train(was_training)
    assert program is not None, "torch gives a program where it writes no file"
    model: bytes = program.model_proto.SerializeToString()
    return model


class OnnxNetwork(nn.Module):
    """The face of a network, with ONNX Runtime behind it. Answers only, on the CPU."""

    def __init__(self, model: bytes, threads: int) -> None:
        super().__init__()
        runtime: Any = optional("onnxruntime")
        wish = runtime.SessionOptions()
        wish.intra_op_num_threads = threads
        self._session = runtime.InferenceSession(model, wish, providers=["CPUExecutionProvider"])

    def forward(self, images: Tensor) -> tuple[Tensor]:
        (logits,) = self._session.run(None, {"images": images.contiguous().numpy()})
        return (torch.from_numpy(logits),)


def optional(package: str) -> ModuleType:
    """One of the packages that an extra brings."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs the package {package}, which is not here; "
            "install the extra: pip install 'convoy-cnn[onnx]'"
        ) from error


def _several(example: Tensor) -> Tensor:
    """A dimension of one would be taken for a fixed one."""
    return example if len(example) > 1 else example.expand(2, *example.shape[1:])


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells of packages it could use and of its own deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
