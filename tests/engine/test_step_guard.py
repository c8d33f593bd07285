"""One decision for all processes: what makes an update apply, be skipped or stop the run."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from convoy.engine.step_guard import GuardState, NonFinitePolicy, StepDecision, StepGuard
from convoy.numerics.loss_scale import GradientRangeCounter, LossScale
from convoy.numerics.precision import FLOAT16
from convoy.optim.update_rules import StepContext
from convoy.parallel.control import ControlGroup, SyncPoint
from convoy.parallel.executor import MicroBatchResult
from convoy.planning.loop import LossScalePlan

APPLY, SKIP, STOP = "apply", "skip", "stop"
FINE = torch.tensor([1.0, -2.0])
BAD = torch.tensor([1.0, torch.nan])
SKIPS = NonFinitePolicy(skip=True, max_consecutive_skips=2)


class Others(ControlGroup):
    """A control with one more process, which brings these notes."""

    def __init__(self, *notes: int) -> None:
        self.notes = list(notes)
        self.heard: list[tuple[SyncPoint, int]] = []

    def all_gather_values(
        self, point: SyncPoint, update: int, notes: Sequence[int]
    ) -> list[list[int]]:
        self.heard.append((point, update))
        return [[*notes], self.notes]


def lost(*losses: float) -> list[MicroBatchResult]:
    return [MicroBatchResult(torch.tensor(loss), torch.tensor(0), 4) for loss in losses]


def decided(
    guard: StepGuard, gradient: Tensor = FINE, loss: float = 2.0, update: int = 0
) -> StepDecision:
    context = guard.step_context(update, float)
    return guard.decide([FINE, gradient], lost(1.0, loss), context)


def outcome(guard: StepGuard, gradient: Tensor = FINE, loss: float = 2.0, update: int = 0) -> str:
    return named(decided(guard, gradient, loss, update))


def named(decision: StepDecision) -> str:
    assert [decision.apply, decision.skipped, decision.stop].count(True) == 1
    return APPLY if decision.apply else SKIP if decision.skipped else STOP


def following(scale: float = 64.0, **more: Any) -> StepGuard:
    return StepGuard(loss_scale=LossScale(LossScalePlan(scale, scale, automatic=True)), **more)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("policy", "expected"), [(NonFinitePolicy(), STOP), (SKIPS, SKIP)])
def test_a_non_finite_gradient_follows_the_policy(
    bad: float, policy: NonFinitePolicy, expected: str
) -> None:
    assert outcome(StepGuard(policy=policy), torch.tensor([bad, 0.0])) == expected


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_non_finite_loss_follows_the_policy(bad: float) -> None:
    assert outcome(StepGuard(), loss=bad) == STOP
    assert outcome(StepGuard(policy=SKIPS), loss=bad) == SKIP


def test_finite_values_and_processes_without_values_are_applied() -> None:
    guard = StepGuard()

    assert outcome(guard) == APPLY
    assert named(guard.decide([torch.zeros(0)], [], StepContext(0.1))) == APPLY


@pytest.mark.parametrize("place", [0, 1, 2])
def test_non_finite_values_of_other_processes_count(place: int) -> None:
    notes = [0] * 7
    notes[place] = 1
    control = Others(*notes)

    assert outcome(StepGuard(control), update=6) == STOP
    assert control.heard == [(SyncPoint.STEP_DECISION, 6)]


def test_consecutive_skips_are_limited() -> None:
    guard = StepGuard(policy=SKIPS)
    outcomes = [outcome(guard, item) for item in (BAD, BAD, FINE, BAD, BAD, BAD)]

    assert outcomes == [
        SKIP,
        SKIP,
        APPLY,
        SKIP,
        SKIP,
        STOP,
    ]
    assert (guard.skipped, guard.consecutive_skips) == (4, 2)


def test_a_limit_of_zero_allows_no_skips() -> None:
    assert (
        outcome(StepGuard(policy=NonFinitePolicy(skip=True, max_consecutive_skips=0)), BAD) == STOP
    )


def test_skipped_updates_do_not_advance_the_schedule() -> None:
    guard, steps = StepGuard(policy=SKIPS), []
    for update, gradient in enumerate((FINE, BAD, FINE, FINE)):
        index = guard.step_context(update, lambda applied: 10.0 + applied)
        guard.decide([gradient], [], index)
        steps.append((index.update, index.steps_applied, index.lr))

    assert steps == [(0, 0, 10.0), (1, 1, 11.0), (2, 1, 11.0), (3, 2, 12.0)]


def test_an_overflow_halves_a_dynamic_scale_and_skips_without_limit() -> None:
    guard = following(2.0**12)
    outcomes = [outcome(guard, BAD) for _ in range(36)]

    assert outcomes == [SKIP] * 36
    assert (guard.loss_scale.scale_at(0), guard.consecutive_skips) == (2.0**-24, 0)
    assert outcome(guard, BAD) == STOP


def test_a_non_finite_loss_does_not_change_the_scale() -> None:
    guard = following()

    assert outcome(guard, BAD, loss=torch.nan) == STOP
    assert guard.loss_scale.scale_at(0) == 64.0


def test_the_context_has_the_scale_of_the_last_applied_update() -> None:
    guard, seen = following(), []
    for update, gradient in enumerate((FINE, BAD, BAD, FINE, FINE)):
        index = guard.step_context(update, float)
        guard.decide([gradient], [], index)
        seen.append((index.loss_scale, index.previous_loss_scale))

    assert seen == [(64, 64), (64, 64), (32, 64), (16, 64), (16, 16)]


def test_gradients_of_all_processes_are_counted_together() -> None:
    counter = GradientRangeCounter(FLOAT16, counts=True, saturates=False)
    guard = following(
        counters=[counter, GradientRangeCounter(FLOAT16, False, True)],
        control=Others(0, 0, 0, 2, 3, 0, 90),
    )
    counter([torch.tensor([9000.0, 1.0, 5000.0, 0.0])])
    decision = decided(guard, update=11)

    assert guard.loss_scale.scale_at(12) == 32.0
    assert [(notice.kind, notice.text, notice.update) for notice in decision.notices] == [
        (
            "loss_scale",
            "halved to 32 at update 12: 3 of 94 gradients are near overflow",
            12,
        )
    ]


def test_a_doubled_scale_has_a_notice() -> None:
    counter = GradientRangeCounter(FLOAT16, counts=True, saturates=False)
    guard = following(counters=[counter])
    counter([torch.tensor([0.0, 1.0])])
    decision = decided(guard)

    assert decision.notices[0].text == (
        "doubled to 128 at update 1: 1 of 2 gradients are near underflow"
    )


def test_a_skipped_update_has_a_notice_with_its_number() -> None:
    guard = StepGuard(policy=SKIPS)
    (notice,) = decided(guard, BAD, update=6).notices

    assert (notice.kind, notice.update) == ("skipped", 7)
    assert notice.text == "update 7 is skipped: its gradients are not finite (1 so far)"


def test_a_restored_guard_has_the_same_state() -> None:
    guard = following(policy=SKIPS)
    for gradient in (FINE, BAD, BAD):
        outcome(guard, gradient)
    other = following(policy=SKIPS)
    other.load_state(GuardState(**guard.state()))  # type: ignore[arg-type]  # as it was written

    assert other.state() == guard.state()
    assert (
        other.step_context(3, float)
        == guard.step_context(3, float)
        == StepContext(1.0, 3, 1, 16.0, 64.0)
    )


def test_a_planned_scale_is_not_restored() -> None:
    guard = StepGuard(loss_scale=LossScale(LossScalePlan(8, 8)))
    guard.load_state(GuardState(followed=1024.0, before=512.0))
    index = guard.step_context(0, float)

    assert (index.loss_scale, index.previous_loss_scale) == (8.0, 512.0)
