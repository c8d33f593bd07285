"""A network for other runtimes: a torch.export program, or an ONNX model and its outputs by ONNX
Runtime.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convoy.errors import ConfigError


class Classifier(nn.Module):
    """A whole network as other programs want it: images in, logits out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor
        (logits,) = self.network(images)
        return logits


@contextmanager
def quietly() -> Iterator[None]:
    """The exporters tell of packages they could use and of their own deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def write_program(path: Path, network: Classifier, images: Tensor, any_batch: bool) -> None:
    """For batches like the example, or of any number of images."""
    batch = {0: torch.export.Dim.DYNAMIC} if any_batch else None
    with quietly():
        program = torch.export.export(network, (images,), dynamic_shapes=(batch,), strict=False)
        torch.export.save(program, path)


def answers_of_program(path: Path, images: Tensor) -> Tensor:
    """What the program in a file makes of some images."""
    with quietly():
        made: Tensor = torch.export.load(path).module()(images)
        return made


BATCH = "batch"  # the name of the dimension that is left open


def as_onnx(network: nn.Module, example: Tensor) -> bytes:
    """From images to logits, for any number of samples like the example's.

    As the network is in use: dropout off, norms with their running statistics.
    """
    need_onnx("ONNX")
    was_training = network.training
    with quietly():
        program = torch.onnx.export(
            Classifier(network).eval(),
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


def with_batch_of(model: bytes, samples: int) -> bytes:
    """The number in place of the open dimension, in every shape that has it."""
    onnx: Any = import_module("onnx")  # whoever made the model has it
    proto = onnx.load_from_string(model)
    graph = proto.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for one in value.type.tensor_type.shape.dim:
            if one.dim_param == BATCH:
                one.dim_value = samples
    made: bytes = proto.SerializeToString()
    return made


class OnnxNetwork(nn.Module):
    """The face of a network, with ONNX Runtime behind it. Answers only, on the CPU."""

    def __init__(self, model: bytes, threads: int) -> None:
        super().__init__()
        runtime: Any = import_module("onnxruntime")
        wish = runtime.SessionOptions()
        wish.intra_op_num_threads = threads
        self._session = runtime.InferenceSession(model, wish, providers=["CPUExecutionProvider"])

    def forward(self, images: Tensor) -> tuple[Tensor]:
        (logits,) = self._session.run(None, {"images": images.contiguous().numpy()})
        return (torch.from_numpy(logits),)


def need_onnx(what: str) -> None:
    """Refuse in one line what cannot be had without the extra."""
    missing = [one for one in ("onnx", "onnxscript", "onnxruntime") if find_spec(one) is None]
    if missing:
        raise ConfigError(
            f"{what} needs {', '.join(missing)}; install with: pip install 'convoy-cnn[onnx]'"
        )


def _several(example: Tensor) -> Tensor:
    """A dimension of one would be taken for a fixed one."""
    return example if len(example) > 1 else example.expand(2, *example.shape[1:])
