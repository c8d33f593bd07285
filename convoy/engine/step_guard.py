"""Whether an update may change the weights: all processes decide alike, from what each has seen."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from convoy.events import Noticed
from convoy.numerics.loss_scale import HIGHEST, Choice, Counts, GradientRangeCounter, LossScale
from convoy.numerics.traps import Traps, all_finite
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.executor import MicroBatchResult
from convoy.plan.loop import UNSCALED

_NO_COUNTS = (0, 0, 0, 0)  # a process may have nothing to count


@dataclass(frozen=True)
class StepDecision:
    """What becomes of an update: it is applied, skipped, or ends the run."""

    apply: bool = True
    stop: bool = False
    notices: tuple[Noticed, ...] = ()

    @property
    def skipped(self) -> bool:
        return not (self.apply or self.stop)


@dataclass(frozen=True)
class NonFinitePolicy:
    """What to do about values that are not finite and that no other loss scale would mend."""

    skip: bool = False
    most_in_a_row: int = 0  # one more stops
    watch_layers: bool = False  # stop at any value of any layer, whatever the gradients are


@dataclass(frozen=True)
class GuardState:
    """What a checkpoint stores."""

    followed: float | None = None  # the scale of the next update, if it follows the gradients
    before: float | None = None  # that of the last update that changed the weights
    skipped: int = 0
    ceiling: float | None = None  # of a scale that follows the gradients
    calm: int = 0  # updates since one was not finite
    in_a_row: int = 0  # skipped since an update changed the weights, not for the scale's sake


@dataclass(frozen=True)
class _Found:
    """What all processes have found."""

    gradients: bool  # all finite
    losses: bool
    values: bool  # of all layers, as far as they are watched
    counts: Counts


@dataclass(eq=False)
class StepGuard:
    """Decides over one update after the other, and knows the loss scale of the next."""

    council: ControlGroup = field(default_factory=ControlGroup)
    loss_scale: LossScale = field(default_factory=lambda: LossScale(UNSCALED))
    policy: NonFinitePolicy = NonFinitePolicy()
    counters: Sequence[GradientRangeCounter] = ()
    traps: Traps | None = None  # None where nothing can look into the layers
    skipped: int = field(default=0, init=False)
    in_a_row: int = field(default=0, init=False)

    def step_context(self, update: int, rate: Callable[[int], float]) -> StepContext:
        """Of this update, counted from 0; skipped ones do not advance the schedule."""
        applied, scale = update - self.skipped, self.loss_scale.at(update)
        before = self.loss_scale.before
        return StepContext(
            rate(applied), update, applied, scale, scale if before is None else before
        )

    def watching(self) -> AbstractContextManager[None]:
        """While the micro-batches of an update pass."""
        if self.traps is None or not self.policy.watch_layers:
            return nullcontext()
        return self.traps.set()

    def decide(
        self, gradients: Sequence[Tensor], passed: Sequence[MicroBatchResult], context: StepContext
    ) -> StepDecision:
        """From our reduced gradients and losses. All processes must call it, before any step."""
        found = self._gathered(gradients, passed, context.update)
        # Another scale mends what overflows backward, not what went wrong before.
        choice = Choice(context.scale)
        if found.losses and found.values:
            choice = self.loss_scale.choose(found.counts, found.gradients)
        if found.values and found.gradients and found.losses:
            self.in_a_row = 0
            self.loss_scale.before = context.scale
            return StepDecision(notices=_scale_notices(choice, context))
        if self._must_stop(found, choice):
            return StepDecision(apply=False, stop=True)
        self.skipped += 1
        number, what = context.update + 1, "gradients" if found.losses else "losses"
        text = f"update {number} is skipped: its {what} are not finite ({self.skipped} so far)"
        notices = _scale_notices(choice, context) or (Noticed("skipped", text, number),)
        return StepDecision(apply=False, notices=notices)

    def _gathered(
        self, gradients: Sequence[Tensor], passed: Sequence[MicroBatchResult], update: int
    ) -> _Found:
        watched = (
            self.policy.watch_layers and self.traps is not None and self.traps.first is not None
        )
        losses = torch.stack([one.loss for one in passed]) if passed else torch.zeros(0)
        own = [
            not all(all_finite(one) for one in gradients),
            not all_finite(losses),
            watched,
            *map(
                sum,
                zip(_NO_COUNTS, *(one.take() for one in self.counters if one.counts), strict=True),
            ),
        ]
        rows = self.council.all_gather_many(SyncPoint.VERDICT, update, [int(one) for one in own])
        bad_gradients, bad_losses, bad_values, *counts = map(sum, zip(*rows, strict=True))
        return _Found(not bad_gradients, not bad_losses, not bad_values, Counts(*counts))

    def _must_stop(self, found: _Found, choice: Choice) -> bool:
        if not found.values:
            return True
        if choice.skips:
            return False
        if not self.policy.skip or self.in_a_row >= self.policy.most_in_a_row:
            return True
        self.in_a_row += 1
        return False

    def state(self) -> dict[str, float | None]:
        scale = self.loss_scale
        return asdict(
            GuardState(
                followed=scale.followed,
                before=scale.before,
                skipped=self.skipped,
                ceiling=scale.ceiling,
                calm=scale.calm,
                in_a_row=self.in_a_row,
            )
        )

    def load_state(self, state: GuardState) -> None:
        """A loss scale that does not follow the gradients is as it is planned now."""
        if self.loss_scale.followed is not None and state.followed is not None:
            self.loss_scale.followed = state.followed
        self.loss_scale.before = state.before
        self.loss_scale.ceiling = state.ceiling or HIGHEST
        self.loss_scale.calm = state.calm
        self.skipped, self.in_a_row = state.skipped, state.in_a_row


def _scale_notices(choice: Choice, context: StepContext) -> tuple[Noticed, ...]:
    """Why the loss scale changes, if it does."""
    if not choice.why:
        return ()
    number = context.update + 1
    way = "halved" if choice.scale < context.scale else "doubled"
    text = f"{way} to {choice.scale:,.10g} at update {number}: {choice.why}"
    return (Noticed("loss_scale", text, number),)
