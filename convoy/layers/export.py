"""Export a network as a torch.export program or an ONNX model, and run what was exported."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convoy.errors import ConfigError


class LogitsWrapper(nn.Module):
    """A network that returns plain logits instead of a bundle of tensors."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor
        (logits,) = self.network(images)
        return logits


@contextmanager
def suppress_exporter_output() -> Iterator[None]:
    """Silence the exporters' notes about optional packages and deprecations."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous_level)


def save_exported_program(
    path: Path,
    network: LogitsWrapper,
    images: Tensor,
    dynamic_batch: bool,
    extra_files: Mapping[str, str] | None = None,
) -> None:
    """Export for the batch size of the example, or for any batch size."""
    batch = {0: torch.export.Dim.DYNAMIC} if dynamic_batch else None
    with suppress_exporter_output():
        program = torch.export.export(network, (images,), dynamic_shapes=(batch,), strict=False)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it names the files of this installation
        # torch names the folder in the archive after the file, which is a temporary one here.
        archive = BytesIO()
        torch.export.save(program, archive, extra_files=dict(extra_files or {}))
    path.write_bytes(archive.getvalue())


def run_exported_program(path: Path, images: Tensor) -> Tensor:
    """Load an exported program and return its logits."""
    with suppress_exporter_output():
        logits: Tensor = torch.export.load(path).module()(images)
        return logits


_STACK_TRACE = ".stack_trace"  # of a node; it names the files of this installation
BATCH_DIM = "batch"  # name of the dynamic dimension


def export_onnx(
    network: nn.Module, example: Tensor, metadata: Mapping[str, str] | None = None
) -> bytes:
    """Export the network in eval mode (images to logits) with a dynamic batch dimension."""
    require_onnx("ONNX")
    was_training = network.training
    with suppress_exporter_output():
        program = torch.onnx.export(
            LogitsWrapper(network).eval(),
            # The exporter treats a dimension of size 1 as static.
            (example if len(example) > 1 else example.expand(2, *example.shape[1:]),),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim(BATCH_DIM)},),
            dynamo=True,
            verbose=False,
        )
    network.train(was_training)
    assert program is not None, "torch returns a program unless it writes a file"
    proto = program.model_proto
    for node in proto.graph.node:
        kept = [entry for entry in node.metadata_props if not entry.key.endswith(_STACK_TRACE)]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    for name, text in (metadata or {}).items():
        proto.metadata_props.add(key=name, value=text)
    model: bytes = proto.SerializeToString(deterministic=True)
    return model


def with_fixed_batch_size(model: bytes, samples: int) -> bytes:
    """Replace the dynamic batch dimension by a fixed size in every shape."""
    onnx: Any = import_module("onnx")  # installed, since a model exists
    proto = onnx.load_from_string(model)
    graph = proto.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == BATCH_DIM:
                dim.dim_value = samples
    fixed: bytes = proto.SerializeToString(deterministic=True)
    return fixed


class OnnxNetwork(nn.Module):
    """A network that runs in ONNX Runtime: inference only, on the CPU."""

    def __init__(self, model: bytes, threads: int) -> None:
        super().__init__()
        runtime: Any = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def forward(self, images: Tensor) -> tuple[Tensor]:
        (logits,) = self._session.run(None, {"images": images.contiguous().numpy()})
        return (torch.from_numpy(logits),)


def require_onnx(feature: str) -> None:
    """Raise an error that names the missing packages and how to install them."""
    packages = ("onnx", "onnxscript", "onnxruntime")
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"{feature} needs {', '.join(missing)}; install with: pip install 'convoy-cnn[onnx]'"
        )
