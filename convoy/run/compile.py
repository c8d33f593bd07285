"""torch.compile: stages as compiled programs, the C++ compiler, and the compile cache."""

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
from convoy.config.sections.device import CompilerConfig
from convoy.errors import ConfigError
from convoy.layers.dropout import Dropout, DropPath, scaled
from convoy.layers.norms import BatchNorm, Pair
from convoy.parallel.slice import Slice

FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # read by torch whenever it looks for something


@contextmanager
def compiler_for(config: CompilerConfig, device: torch.device) -> Iterator[None]:
    """Refuse what cannot be compiled; then let everything that is made lie where it is wanted."""
    from torch._inductor import config as inductor

    if device.type == "cpu":
        _refuse_without_compiler()
    before = os.environ.get(FOLDER)
    # Without caches torch looks for nothing and keeps nothing; equal C++ is still equal.
    uncached = inductor.force_disable_caches or config.force_recompile
    with _folder(config) as folder, inductor.patch(force_disable_caches=uncached):
        os.environ.update({} if folder is None else {FOLDER: folder})
        try:
            yield
        finally:
            os.environ.pop(FOLDER, None)
            os.environ.update({} if before is None else {FOLDER: before})


def _refuse_without_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        named = os.environ.get("CXX")
        where = f"CXX={named} is none" if named else "there is none on this machine"
        raise ConfigError(
            f"compiling needs a C++ compiler, and {where}; install g++, name another one by the "
            "variable CXX, or go on without"
        ) from error


@contextmanager
def _folder(config: CompilerConfig) -> Iterator[str | None]:
    """Where programs lie; None leaves it to torch."""
    if config.model_cache_path is None:
        yield None
        return
    path = Path(config.model_cache_path).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        own = TemporaryDirectory(prefix="run-", dir=path) if config.tmp_execs else None
    except OSError as error:
        raise ConfigError(f"--model-cache-path {path} cannot be used: {error.strerror}") from error
    with own or nullcontext(str(path)) as folder:
        yield folder


Program = Callable[..., tuple[Bundle, list[Pair]]]


class Compiled(nn.Module):
    """The face of a slice. A program is whole: torch may not leave it on the way.

    What its layers draw by chance comes into a program, and what its norms have to note leaves it,
    beside the bundle. Layers that can do neither stand between two programs.
    """

    def __init__(self, layers: Slice) -> None:
        super().__init__()
        self.slice = layers
        self._programs: dict[tuple[range, bool], Program] = {}
        for index, layer in enumerate(layers.layers.values()):
            if _stands_alone(layer):
                layers.spare_what_comes_into(index + 1)

    def forward(self, *bundle: Tensor) -> Bundle:
        if self.training:
            self.slice.position.advance()
        return self.run(range(len(self.slice.routes)), *bundle)

    def run(self, part: range, *bundle: Tensor) -> Bundle:
        """Some of the layers, one after the other."""
        layers = list(self.slice.layers.values())
        for piece in _pieces(layers, part):
            alone = len(piece) == 1 and _stands_alone(layers[piece.start])
            bundle = self.slice.run(piece, *bundle) if alone else self._run(piece, bundle)
        return bundle

    def _run(self, piece: range, bundle: Bundle) -> Bundle:
        layers = list(self.slice.layers.values())[piece.start : piece.stop]
        draws = [one.draw(len(bundle[0])) for one in layers if _is_drawn_for(one)]
        made, found = self._program(piece)(draws, *bundle)
        norms = [one for one in layers if _measures(one)]
        for norm, statistics in zip(norms, found, strict=True):
            norm.note(statistics)
        return made

    def _program(self, piece: range) -> Program:
        key = (piece, self.training)
        if key not in self._programs:
            # torch looks at the gradient of what comes in, and warns of its own look.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            # Programs have one text: without isolation they would count as versions of one.
            self._programs[key] = torch.compile(  # type: ignore[call-overload]  # torch's stub
                partial(_pass, self.slice, piece),
                dynamic=False,
                fullgraph=True,
                isolate_recompiles=True,
            )
        return self._programs[key]


def _pieces(layers: list[nn.Module], part: range) -> Iterator[range]:
    """The programs, and the layers that stand between them."""
    alone = [index for index in part if _stands_alone(layers[index])]
    borders = [part.start, *(border for one in alone for border in (one, one + 1)), part.stop]
    return (range(*pair) for pair in pairwise(borders) if pair[0] < pair[1])


def _stands_alone(layer: nn.Module) -> bool:
    """Norms that meet other replicas or measure their own way, and draws for every element."""
    if isinstance(layer, Dropout):
        return layer.draws
    return _measures(layer) and not layer.is_plain


def _measures(layer: nn.Module) -> TypeGuard[BatchNorm]:
    return isinstance(layer, BatchNorm) and layer.measures


def _is_drawn_for(layer: nn.Module) -> TypeGuard[DropPath]:
    return isinstance(layer, DropPath) and layer.draws


def _pass(
    layers: Slice, piece: range, draws: list[Tensor], *bundle: Tensor
) -> tuple[Bundle, list[Pair]]:
    """What a program does: `Slice.run` without side effects."""
    found: list[Pair] = []
    drawn = iter(draws)
    modules = list(layers.layers.values())[piece.start : piece.stop]
    calls = [_without_side_effects(one, drawn, found) for one in modules]
    return layers.through(piece, calls, *bundle), found


def _without_side_effects(
    layer: nn.Module, draws: Iterator[Tensor], found: list[Pair]
) -> Callable[..., Tensor]:
    if _measures(layer):
        return partial(_measured, layer, found)
    if _is_drawn_for(layer):
        return partial(scaled, kept=next(draws))
    return layer


def _measured(norm: BatchNorm, found: list[Pair], given: Tensor) -> Tensor:
    made, statistics = norm.measured(given)
    found.append(statistics)
    return made
