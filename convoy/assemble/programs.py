"""Stages as programs of torch.compile: one for each part of a slice that runs in one go."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TypeGuard

import torch
from torch import Tensor, nn

from convoy.models.batch_norm import BatchNorm, Pair
from convoy.models.chance import Dropout, DropPath, scaled
from convoy.parallel.slice import Bundle, Slice

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
            self.slice.moment.enter()
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
