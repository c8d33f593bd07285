"""Keep less, compute again: a slice that stores only what lies at its recompute points.

        input ─ segment ─ point ─ segment ─ point ─ segment ─ output
          kept            kept              kept

Between forward and backward the segments hold nothing; each runs again right before its backward.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.parallel.slice import Bundle, Slice

# Inside, layers that remember what they saw do not remember it a second time.
Quiet = Callable[[], AbstractContextManager[None]]


class Recomputing(nn.Module):
    """The face of a slice. `points` are patterns of layer names whose output is kept."""

    def __init__(self, layers: Slice, points: Sequence[str], quiet: Quiet) -> None:
        super().__init__()
        self.slice = layers
        self.quiet = quiet
        names = list(layers.layers)
        starts = segment_starts(names, points)
        for start in starts:
            layers.spare_what_comes_into(start)
        self.segments = [range(*borders) for borders in pairwise([*starts, len(names)])]

    def forward(self, *bundle: Tensor) -> Bundle:
        if not (self.training and torch.is_grad_enabled()):
            return self.slice.run(range(len(self.slice.routes)), *bundle)
        for segment in self.segments:
            bundle = self._run(segment, bundle)
        return bundle

    def _run(self, segment: range, bundle: Bundle) -> Bundle:
        """Chance is a function of keys here, so torch's generators need not be put back."""
        made: Bundle = checkpoint(
            self.slice.run,
            segment,
            *bundle,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), self.quiet()),
        )
        return made


def segment_starts(names: Sequence[str], points: Sequence[str]) -> list[int]:
    """Where segments begin: at the first layer, and after each one that a pattern matches whole."""
    patterns = [re.compile(point) for point in points]
    kept = [any(one.fullmatch(name) for one in patterns) for name in names[:-1]]
    return [0, *(index + 1 for index, is_kept in enumerate(kept) if is_kept)]
