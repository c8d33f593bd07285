"""Whether an update may change the weights: every process looks at its own, all decide alike."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from enum import Enum

import torch
from torch import Tensor

from convoy.events import Noticed
from convoy.numerics.loss_scale import HIGHEST, Choice, Counts, LossScale, Tally
from convoy.numerics.traps import Traps, all_finite
from convoy.optim.step import Step
from convoy.parallel.council import Council, Matter, Single
from convoy.parallel.pipeline import Passed
from convoy.plan.loss_scale import UNSCALED

_NO_COUNTS = (0, 0, 0, 0)  # a process may have nothing to count


class Ruling(Enum):
    """What becomes of an update."""

    APPLY = "apply"
    SKIP = "skip"
    STOP = "stop"


@dataclass(frozen=True)
class Verdict:
    """The ruling, and what is to be told of it."""

    ruling: Ruling = Ruling.APPLY
    notices: tuple[Noticed, ...] = ()


@dataclass(frozen=True)
class Policy:
    """What is done about values that are not finite and that no other scale would mend."""

    skips: bool = False
    most: int = 0  # in a row; one more stops
    watches: bool = False  # every value of every layer, which stops whatever the gradients are


@dataclass(frozen=True)
class Record:
    """What a checkpoint remembers."""

    followed: float | None = None  # the scale of the next update, if it follows the gradients
    before: float | None = None  # that of the last update that changed the weights
    skipped: int = 0
    ceiling: float | None = None  # of a scale that follows the gradients
    calm: int = 0  # updates since one was not finite
    in_a_row: int = 0  # skipped since an update changed the weights, not for the scale's sake


@dataclass(frozen=True)
class _Found:
    """What all processes found together."""

    gradients: bool  # all finite
    losses: bool
    values: bool  # of all layers, as far as they are watched
    counts: Counts


class Judge:
    """Rules over one update after the other, and knows the scale of the next."""

    def __init__(
        self,
        council: Council | None = None,
        loss_scale: LossScale | None = None,
        policy: Policy | None = None,
        tallies: Sequence[Tally] = (),
        traps: Traps | None = None,  # None where nothing can look into the layers
    ) -> None:
        self.council = council or Single()
        self.loss_scale = loss_scale or LossScale(UNSCALED)
        self.policy = policy or Policy()
        self.tallies = [one for one in tallies if one.counts]
        self.traps = traps
        self.verdict = Verdict()
        self.skipped = 0
        self.in_a_row = 0

    def step(self, update: int, rate: Callable[[int], float]) -> Step:
        """What this update, counted from 0, is told; skipped ones do not move the schedule."""
        applied, scale = update - self.skipped, self.loss_scale.at(update)
        before = self.loss_scale.before
        return Step(rate(applied), update, applied, scale, scale if before is None else before)

    def watching(self) -> AbstractContextManager[None]:
        """While the micro-batches of an update pass."""
        if self.traps is None or not self.policy.watches:
            return nullcontext()
        return self.traps.set()

    def __call__(self, gradients: Sequence[Tensor], passed: Sequence[Passed], at: Step) -> Ruling:
        """Our reduced gradients and losses, before any weight moves. All processes must ask."""
        found = self._gathered(gradients, passed, at.update)
        # Another scale mends what overflows backward, not what went wrong before.
        choice = Choice(at.scale)
        if found.losses and found.values:
            choice = self.loss_scale.choose(found.counts, found.gradients)
        ruling = self._ruling(found, choice)
        self.verdict = Verdict(ruling, tuple(self._notices(found, choice, ruling, at)))
        return ruling

    def _gathered(
        self, gradients: Sequence[Tensor], passed: Sequence[Passed], update: int
    ) -> _Found:
        watched = self.policy.watches and self.traps is not None and self.traps.first is not None
        losses = torch.stack([one.loss for one in passed]) if passed else torch.zeros(0)
        own = [
            not all(all_finite(one) for one in gradients),
            not all_finite(losses),
            watched,
            *map(sum, zip(_NO_COUNTS, *(one.take() for one in self.tallies), strict=True)),
        ]
        rows = self.council.tell(Matter.VERDICT, update, [int(one) for one in own])
        bad_gradients, bad_losses, bad_values, *counts = map(sum, zip(*rows, strict=True))
        return _Found(not bad_gradients, not bad_losses, not bad_values, Counts(*counts))

    def _ruling(self, found: _Found, choice: Choice) -> Ruling:
        if not found.values:
            return Ruling.STOP
        if found.gradients and found.losses:
            self.in_a_row = 0
            return Ruling.APPLY
        if not choice.skips:
            if not self.policy.skips or self.in_a_row >= self.policy.most:
                return Ruling.STOP
            self.in_a_row += 1
        self.skipped += 1
        return Ruling.SKIP

    def _notices(self, found: _Found, choice: Choice, ruling: Ruling, at: Step) -> list[Noticed]:
        """And what the next update must know of this one."""
        number = at.update + 1
        if ruling is Ruling.APPLY:
            self.loss_scale.before = at.scale
        if choice.why:
            way = "halved" if choice.scale < at.scale else "doubled"
            text = f"{way} to {choice.scale:,.10g} at update {number}: {choice.why}"
            return [Noticed("loss_scale", text, number)]
        if ruling is Ruling.SKIP:
            what = "gradients" if found.losses else "losses"
            text = f"update {number} is skipped: its {what} are not finite ({self.skipped} so far)"
            return [Noticed("skipped", text, number)]
        return []

    def record(self) -> dict[str, float | None]:
        scale = self.loss_scale
        return asdict(
            Record(
                followed=scale.followed,
                before=scale.before,
                skipped=self.skipped,
                ceiling=scale.ceiling,
                calm=scale.calm,
                in_a_row=self.in_a_row,
            )
        )

    def go_on_from(self, record: Record) -> None:
        """A scale that does not follow the gradients is as it is planned now."""
        if self.loss_scale.followed is not None and record.followed is not None:
            self.loss_scale.followed = record.followed
        self.loss_scale.before = record.before
        self.loss_scale.ceiling = record.ceiling or HIGHEST
        self.loss_scale.calm = record.calm
        self.skipped, self.in_a_row = record.skipped, record.in_a_row
