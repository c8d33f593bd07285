"""Keep less, compute again: a slice that stores only what lies at its recompute points.

        input ─ segment ─ point ─ segment ─ point ─ segment ─ output           kept
kept              kept

Between forward and backward the segments hold nothing; each runs again right before its
backward.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convoy.batch import Bundle
from convoy.parallel.slice import Slice
from convoy.plan.recompute import segment_starts

# Inside, layers that remember what they saw do not remember it a second time.
Quiet = Callable[[], AbstractContextManager[None]]
# How some layers of the slice are run: as they are, or compiled.
Run = Callable[..., Bundle]


class Recomputing(nn.Module):
    """The face of a slice. `kept` names the layers whose result is kept; it may name others."""

    def __init__(
        self, layers: Slice, kept: Sequence[str], quiet: Quiet, run: Run | None = None
    ) -> None:
        super().__init__()
        self.slice = layers
        self.run = run or layers.run
        self.quiet = quiet
        names = list(layers.layers)
        starts = segment_starts(names, kept)
        for start in starts:
            layers.spare_what_comes_into(start)
        self.segments = [range(*borders) for borders in pairwise([*starts, len(names)])]

    def forward(self, *bundle: Tensor) -> Bundle:
        if not (self.training and torch.is_grad_enabled()):
            return self.run(range(len(self.slice.routes)), *bundle)
        self.slice.position.advance()
        for segment in self.segments:
            bundle = self._run(segment, bundle)
        return bundle

    def _run(self, segment: range, bundle: Bundle) -> Bundle:
        """Chance is a function of the moment here, so torch's generators need not be put back."""
        number = self.slice.position.number
        made: Bundle = checkpoint(
            self.run,
            segment,
            *bundle,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), self._again(number)),
        )
        return made

    @contextmanager
    def _again(self, number: int) -> Iterator[None]:
        with self.quiet(), self.slice.position.replay(number):
            yield
