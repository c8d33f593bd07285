"""Decides whether an update is applied; all processes reach the same decision."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from convoy.events import Noticed
from convoy.numerics.loss_scale import (
    MAX_SCALE,
    GradientRangeCounter,
    LossScale,
    RangeCounts,
    ScaleDecision,
)
from convoy.numerics.traps import Traps, all_finite
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.executor import MicroBatchResult
from convoy.planning.loop import NO_LOSS_SCALING
from convoy.text import pluralize

_NO_COUNTS = (0, 0, 0, 0)  # of a process without counters


@dataclass(frozen=True)
class StepDecision:
    """Whether an update is applied, skipped, or stops the run."""

    apply: bool = True
    stop: bool = False
    notices: tuple[Noticed, ...] = ()

    @property
    def skipped(self) -> bool:
        return not (self.apply or self.stop)


@dataclass(frozen=True)
class NonFinitePolicy:
    """How to handle non-finite values that a different loss scale would not fix."""

    skip: bool = False
    max_consecutive_skips: int = 0  # one more stops the run
    watch_layers: bool = False  # stop at a non-finite value in any layer


@dataclass(frozen=True)
class GuardState:
    """The state that a checkpoint stores. The field names are part of the format."""

    dynamic_scale: float | None = None  # of the next update
    last_applied_scale: float | None = None
    skipped: int = 0
    max_scale: float | None = None  # of a dynamic scale
    finite_updates: int = 0  # since the last non-finite one
    consecutive_skips: int = 0  # that the loss scale did not cause


@dataclass(eq=False)
class StepGuard:
    """Decides on every update and tracks the loss scale."""

    control: ControlGroup = field(default_factory=ControlGroup)
    loss_scale: LossScale = field(default_factory=lambda: LossScale(NO_LOSS_SCALING))
    policy: NonFinitePolicy = NonFinitePolicy()
    counters: Sequence[GradientRangeCounter] = ()
    traps: Traps | None = None  # None if layers cannot be inspected
    skipped: int = field(default=0, init=False)
    consecutive_skips: int = field(default=0, init=False)

    def step_context(self, update: int, rate: Callable[[int], float]) -> StepContext:
        """The context of an update, counted from 0; skipped updates do not advance the schedule."""
        applied, scale = update - self.skipped, self.loss_scale.scale_at(update)
        last_scale = self.loss_scale.last_applied_scale
        return StepContext(
            rate(applied), update, applied, scale, scale if last_scale is None else last_scale
        )

    def watch_context(self) -> AbstractContextManager[None]:
        if self.traps is None or not self.policy.watch_layers:
            return nullcontext()
        return self.traps.armed()

    def decide(
        self, gradients: Sequence[Tensor], results: Sequence[MicroBatchResult], context: StepContext
    ) -> StepDecision:
        """Check the reduced gradients and the losses; all processes must call this."""
        recorded = self.traps is not None and self.traps.first is not None
        losses = torch.stack([result.loss for result in results]) if results else torch.zeros(0)
        counts = [counter.pop_counts() for counter in self.counters]
        local = [
            not all(all_finite(gradient) for gradient in gradients),
            not all_finite(losses),
            recorded and self.policy.watch_layers,
            *map(sum, zip(_NO_COUNTS, *counts, strict=True)),
        ]
        rows = self.control.all_gather_values(
            SyncPoint.STEP_DECISION, context.update, [int(value) for value in local]
        )
        bad_gradients, bad_losses, bad_values, *totals = map(sum, zip(*rows, strict=True))
        # A different scale fixes overflows in backward, not earlier ones.
        decision = ScaleDecision(context.loss_scale)
        if not (bad_losses or bad_values):
            decision = self.loss_scale.update(RangeCounts(*totals), finite=not bad_gradients)
        if not (bad_gradients or bad_losses or bad_values):
            self.consecutive_skips = 0
            self.loss_scale.last_applied_scale = context.loss_scale
            return StepDecision(notices=_scale_notices(decision, context))
        if bad_values or not self._may_skip(decision):
            return StepDecision(apply=False, stop=True)
        self.skipped += 1
        total = pluralize(self.skipped, "update")
        number, cause = context.update + 1, "losses" if bad_losses else "gradients"
        text = f"update {number} was skipped: its {cause} are not finite ({total} skipped so far)"
        notices = _scale_notices(decision, context) or (Noticed("skipped", text, number),)
        return StepDecision(apply=False, notices=notices)

    def _may_skip(self, decision: ScaleDecision) -> bool:
        if decision.skip_update:
            return True
        if not self.policy.skip or self.consecutive_skips >= self.policy.max_consecutive_skips:
            return False
        self.consecutive_skips += 1
        return True

    def state(self) -> dict[str, float | None]:
        scale = self.loss_scale
        return asdict(
            GuardState(
                dynamic_scale=scale.dynamic_scale,
                last_applied_scale=scale.last_applied_scale,
                skipped=self.skipped,
                max_scale=scale.max_scale,
                finite_updates=scale.finite_updates,
                consecutive_skips=self.consecutive_skips,
            )
        )

    def load_state(self, state: GuardState) -> None:
        """Restore the state; a planned loss scale is taken from the current plan instead."""
        if self.loss_scale.dynamic_scale is not None and state.dynamic_scale is not None:
            self.loss_scale.dynamic_scale = state.dynamic_scale
        self.loss_scale.last_applied_scale = state.last_applied_scale
        self.loss_scale.max_scale = state.max_scale or MAX_SCALE
        self.loss_scale.finite_updates = state.finite_updates
        self.skipped, self.consecutive_skips = state.skipped, state.consecutive_skips


def _scale_notices(decision: ScaleDecision, context: StepContext) -> tuple[Noticed, ...]:
    """A notice if the loss scale changes."""
    if not decision.reason:
        return ()
    number = context.update + 1
    change = "halved" if decision.scale < context.loss_scale else "doubled"
    text = f"loss scale {change} to {decision.scale:,.10g} at update {number}: {decision.reason}"
    return (Noticed("loss_scale", text, number),)
