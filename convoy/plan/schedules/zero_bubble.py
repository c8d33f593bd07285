"""Zero bubble: the backward pass in two halves, and the half that nobody waits for fills the gaps.

The gradient of what came in (I) is sent on as soon as it is there; stage s does the weights (W)
s micro-batches later. So every stage holds S activation sets: what stage 0 of interleaved holds.
(ZB-H1 of Qi et al., Zero Bubble Pipeline Parallelism; torch: InterleavedZeroBubble.)
"""

from dataclasses import dataclass

from convoy.plan.schedules.actions import (
    Action,
    BackwardInput,
    BackwardWeight,
    Forward,
    Row,
    paired,
)
from convoy.plan.schedules.one_f_one_b import Schedule, check_least
from convoy.plan.schedules.simulate import earliest_columns


@dataclass(frozen=True)
class ZeroBubble(Schedule):
    """Interleaved, with its backward passes split. One stage alone has no gaps to fill."""

    def actions(
        self, stage: int, stages: int, micro_batches: int, *, training: bool = True
    ) -> list[Action]:
        """Each weight half follows the input half of `stage` micro-batches later."""
        if not training or stages == 1:
            return super().actions(stage, stages, micro_batches, training=training)
        micros, lag = range(micro_batches), min(stage, micro_batches)
        ahead = self.unanswered(stage, stages, micro_batches) - 1
        made: Row = []
        for action in paired([*map(Forward, micros)], [*map(BackwardInput, micros)], ahead):
            made.append(action)
            if isinstance(action, BackwardInput) and action.micro >= lag:
                made.append(BackwardWeight(action.micro - lag))
        return [*made, *map(BackwardWeight, micros[micro_batches - lag :])]

    def columns(self, stages: int, micro_batches: int, *, training: bool = True) -> list[list[int]]:
        """As early as what is needed is there: 3A + S − 1, where interleaved takes 3(A + S − 1)."""
        if not training or stages == 1:
            return super().columns(stages, micro_batches, training=training)
        return earliest_columns(self, stages, micro_batches)

    def stash(self, stage: int, stages: int) -> int:
        """Activation sets just before a weight half at full flow."""
        del stage
        return stages

    def peak_stash(self, stage: int, stages: int, micro_batches: int) -> int:
        return min(self.stash(stage, stages), micro_batches)

    def unanswered(self, stage: int, stages: int, micro_batches: int) -> int:
        """As for interleaved: the lag of the weight halves is no business of the neighbors."""
        return min(stages - stage, micro_batches)

    def check_count(self, stages: int, micro_batches: int) -> None:
        """Any count that fills the pipeline will do."""
        check_least(f"Zero-bubble with {stages} stages", stages, micro_batches)
