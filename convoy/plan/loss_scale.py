"""The loss scale of every update, as far as it is known beforehand: constant, or a ladder.

From I to F = I · 2^(n − 1) there are n levels. Level j, I · 2^j, begins j · floor(E / n) epochs
after the start of a run of E epochs; in a run of fewer epochs than levels, after floor(j · T / n)
of its T updates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from convoy.plan.wording import counted


@dataclass(frozen=True)
class Level:
    """One scale, from an update (counted from 0) on."""

    scale: float
    first: int


@dataclass(frozen=True)
class LossScalePlan:
    """The factor of the loss in each update. One that follows the gradients begins with it."""

    first: float = 1.0
    last: float = 1.0  # the first one, doubled some times
    automatic: bool = False
    updates_per_epoch: int = 1
    updates: int = 1

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        count = round(self.last / self.first).bit_length()
        epochs = self.updates // (count * self.updates_per_epoch)  # of one level
        starts = [
            level * epochs * self.updates_per_epoch if epochs else level * self.updates // count
            for level in range(count)
        ]
        return tuple(Level(self.first * 2**level, start) for level, start in enumerate(starts))

    @property
    def is_constant(self) -> bool:
        return len(self.levels) == 1 and not self.automatic

    def scale(self, update: int) -> float:
        """The scale of this update, counted from 0."""
        return next(one.scale for one in reversed(self.levels) if one.first <= update)


UNSCALED = LossScalePlan()


def loss_scale_as_text(plan: LossScalePlan) -> Iterator[str]:
    """Lines of a printed plan; none where the loss is taken as it is."""
    if plan.automatic:
        yield f"scale     {plan.last:,.10g} at first, then as the gradients want it"
    elif plan.is_constant:
        if plan.last != 1:
            yield f"scale     {plan.last:,.10g} times the loss"
    else:
        words = [_level(plan, one) for one in plan.levels]
        yield f"scale     {', '.join(words)}"


def _level(plan: LossScalePlan, level: Level) -> str:
    if level.first == 0:
        return f"{level.scale:,.10g} at first"
    epochs, left = divmod(level.first, plan.updates_per_epoch)
    after = counted(level.first, "update") if left else f"{epochs} epoch{'s' * (epochs > 1)}"
    return f"{level.scale:,.10g} after {after}"
