"""torch.compile: compiled stages, the C++ compiler check, and the compile cache."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeGuard

import torch
from torch import Tensor, nn

from convoy.batch import Bundle
from convoy.config.sections.parallel import CompilerConfig
from convoy.errors import ConfigError
from convoy.layers.dropout import Dropout, DropPath, apply_mask
from convoy.layers.norms import BatchNorm, MeanVar
from convoy.parallel.slice import Slice

CACHE_DIR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch reads it at every cache lookup


@contextmanager
def compile_environment(config: CompilerConfig, device: torch.device) -> Iterator[None]:
    """Check for a compiler, and set the cache folder and cache use in this block."""
    from torch._inductor import config as inductor

    if device.type == "cpu":
        _require_cpp_compiler()
    previous = os.environ.get(CACHE_DIR_VARIABLE)
    # Without caches torch neither looks up nor stores; identical C++ is still compiled once.
    uncached = inductor.force_disable_caches or config.force_recompile
    with _cache_dir(config) as folder, inductor.patch(force_disable_caches=uncached):
        os.environ.update({} if folder is None else {CACHE_DIR_VARIABLE: folder})
        try:
            yield
        finally:
            os.environ.pop(CACHE_DIR_VARIABLE, None)
            os.environ.update({} if previous is None else {CACHE_DIR_VARIABLE: previous})


def _require_cpp_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        cxx = os.environ.get("CXX")
        reason = f"CXX={cxx} is not one" if cxx else "none was found"
        raise ConfigError(
            f"compiling needs a C++ compiler, but {reason}; install g++, set CXX to another "
            "compiler, or run without compiling"
        ) from error


@contextmanager
def _cache_dir(config: CompilerConfig) -> Iterator[str | None]:
    """The folder of compiled code; None leaves it to torch."""
    if config.model_cache_path is None:
        yield None
        return
    path = Path(config.model_cache_path).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        temporary = TemporaryDirectory(prefix="run-", dir=path) if config.tmp_execs else None
    except OSError as error:
        raise ConfigError(f"--model-cache-path {path} cannot be used: {error.strerror}") from error
    with temporary or nullcontext(str(path)) as folder:
        yield folder


CompiledProgram = Callable[..., tuple[Bundle, list[MeanVar]]]


class CompiledSlice(nn.Module):
    """A slice as compiled segments, each a full graph without graph breaks.

    Random masks are inputs of a segment, and batch statistics are outputs, beside the bundle.
    Layers that support neither run eagerly between two segments.
    """

    def __init__(self, layers: Slice) -> None:
        super().__init__()
        self.slice = layers
        self._programs: dict[tuple[range, bool], CompiledProgram] = {}
        for index, layer in enumerate(layers.layers.values()):
            if _runs_eagerly(layer):
                layers.disable_inplace_from(index + 1)

    def forward(self, *bundle: Tensor) -> Bundle:
        if self.training:
            self.slice.position.advance()
        return self.run(range(len(self.slice.routes)), *bundle)

    def run(self, layer_range: range, *bundle: Tensor) -> Bundle:
        """Run some of the layers in sequence."""
        layers = list(self.slice.layers.values())
        for segment in _segments(layers, layer_range):
            is_eager = len(segment) == 1 and _runs_eagerly(layers[segment.start])
            bundle = self.slice.run(segment, *bundle) if is_eager else self._run(segment, bundle)
        return bundle

    def _run(self, segment: range, bundle: Bundle) -> Bundle:
        layers = list(self.slice.layers.values())[segment.start : segment.stop]
        masks = [layer.sample_mask(len(bundle[0])) for layer in layers if _takes_mask(layer)]
        outputs, batch_statistics = self._program(segment)(masks, *bundle)
        norms = [layer for layer in layers if _collects_statistics(layer)]
        for norm, statistics in zip(norms, batch_statistics, strict=True):
            if norm.records_statistics:
                norm.pending_statistics.append(statistics)
        return outputs

    def _program(self, segment: range) -> CompiledProgram:
        key = (segment, self.training)
        if key not in self._programs:
            # torch reads .grad of the inputs, and warns about its own access.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            # All segments share one code object: without isolation they count as recompilations.
            self._programs[key] = torch.compile(  # type: ignore[call-overload]  # torch's stub
                partial(_run_pure, self.slice, segment),
                dynamic=False,
                fullgraph=True,
                isolate_recompiles=True,
            )
        return self._programs[key]


def _segments(layers: list[nn.Module], layer_range: range) -> Iterator[range]:
    """Split the layers into compiled segments and the eager layers between them."""
    eager = [index for index in layer_range if _runs_eagerly(layers[index])]
    bounds = [
        layer_range.start,
        *(bound for index in eager for bound in (index, index + 1)),
        layer_range.stop,
    ]
    return (range(*pair) for pair in pairwise(bounds) if pair[0] < pair[1])


def _runs_eagerly(layer: nn.Module) -> bool:
    """Whether it is a norm without the torch kernel (such as a synced one), or dropout."""
    if isinstance(layer, Dropout):
        return layer.is_active
    return _collects_statistics(layer) and not layer.uses_torch_kernel


def _collects_statistics(layer: nn.Module) -> TypeGuard[BatchNorm]:
    return isinstance(layer, BatchNorm) and layer.training and not layer.frozen


def _takes_mask(layer: nn.Module) -> TypeGuard[DropPath]:
    return isinstance(layer, DropPath) and layer.is_active


def _run_pure(
    layers: Slice, segment: range, masks: list[Tensor], *bundle: Tensor
) -> tuple[Bundle, list[MeanVar]]:
    """Run layers like `Slice.run`, without side effects."""
    statistics: list[MeanVar] = []
    mask_iterator = iter(masks)
    modules = list(layers.layers.values())[segment.start : segment.stop]
    functions = [_without_side_effects(module, mask_iterator, statistics) for module in modules]
    return layers.run_calls(segment, functions, *bundle), statistics


def _without_side_effects(
    layer: nn.Module, masks: Iterator[Tensor], statistics: list[MeanVar]
) -> Callable[..., Tensor]:
    if _collects_statistics(layer):
        return partial(_forward_with_statistics, layer, statistics)
    if _takes_mask(layer):
        return partial(apply_mask, mask=next(masks))
    return layer


def _forward_with_statistics(norm: BatchNorm, statistics: list[MeanVar], inputs: Tensor) -> Tensor:
    output, mean_var = norm.forward_with_statistics(inputs)
    statistics.append(mean_var)
    return output
