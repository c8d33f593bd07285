"""All processes decide together whether an update is applied, skipped or stops the run."""

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
FINITE = torch.tensor([1.0, -2.0])
NON_FINITE = torch.tensor([1.0, torch.nan])
SKIP_TWICE = NonFinitePolicy(skip=True, max_consecutive_skips=2)


class TwoProcesses(ControlGroup):
    """A control group with a second process that contributes these flags."""

    def __init__(self, *flags: int) -> None:
        self.flags = list(flags)
        self.sync_points: list[tuple[SyncPoint, int]] = []

    def all_gather_values(
        self, point: SyncPoint, update: int, flags: Sequence[int]
    ) -> list[list[int]]:
        self.sync_points.append((point, update))
        return [[*flags], self.flags]


def results_of(*losses: float) -> list[MicroBatchResult]:
    return [MicroBatchResult(torch.tensor(loss), torch.tensor(0), 4) for loss in losses]


def decide(
    guard: StepGuard, gradient: Tensor = FINITE, loss: float = 2.0, update: int = 0
) -> StepDecision:
    context = guard.step_context(update, float)
    return guard.decide([FINITE, gradient], results_of(1.0, loss), context)


def outcome(guard: StepGuard, gradient: Tensor = FINITE, loss: float = 2.0, update: int = 0) -> str:
    return outcome_of(decide(guard, gradient, loss, update))


def outcome_of(decision: StepDecision) -> str:
    assert [decision.apply, decision.skipped, decision.stop].count(True) == 1
    return APPLY if decision.apply else SKIP if decision.skipped else STOP


def dynamic_scale_guard(scale: float = 64.0, **options: Any) -> StepGuard:
    return StepGuard(loss_scale=LossScale(LossScalePlan(scale, scale, automatic=True)), **options)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("policy", "expected"), [(NonFinitePolicy(), STOP), (SKIP_TWICE, SKIP)])
def test_a_non_finite_gradient_follows_the_policy(
    bad: float, policy: NonFinitePolicy, expected: str
) -> None:
    assert outcome(StepGuard(policy=policy), torch.tensor([bad, 0.0])) == expected


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_non_finite_loss_follows_the_policy(bad: float) -> None:
    assert outcome(StepGuard(), loss=bad) == STOP
    assert outcome(StepGuard(policy=SKIP_TWICE), loss=bad) == SKIP


def test_finite_values_and_processes_without_values_are_applied() -> None:
    guard = StepGuard()

    assert outcome(guard) == APPLY
    assert outcome_of(guard.decide([torch.zeros(0)], [], StepContext(0.1))) == APPLY


@pytest.mark.parametrize("index", [0, 1, 2])
def test_non_finite_values_of_other_processes_count(index: int) -> None:
    flags = [0] * 7
    flags[index] = 1
    control = TwoProcesses(*flags)

    assert outcome(StepGuard(control), update=6) == STOP
    assert control.sync_points == [(SyncPoint.STEP_DECISION, 6)]


def test_a_value_found_by_a_trap_stops_the_run_even_if_updates_may_be_skipped() -> None:
    from_a_trap = [0, 0, 1, 0, 0, 0, 0]

    assert outcome(StepGuard(TwoProcesses(*from_a_trap), policy=SKIP_TWICE)) == STOP


def test_consecutive_skips_are_limited() -> None:
    guard = StepGuard(policy=SKIP_TWICE)
    outcomes = [
        outcome(guard, item)
        for item in (NON_FINITE, NON_FINITE, FINITE, NON_FINITE, NON_FINITE, NON_FINITE)
    ]

    assert outcomes == [SKIP, SKIP, APPLY, SKIP, SKIP, STOP]
    assert (guard.skipped, guard.consecutive_skips) == (4, 2)


def test_a_limit_of_zero_allows_no_skips() -> None:
    assert (
        outcome(StepGuard(policy=NonFinitePolicy(skip=True, max_consecutive_skips=0)), NON_FINITE)
        == STOP
    )


def test_skipped_updates_do_not_advance_the_schedule() -> None:
    guard, steps = StepGuard(policy=SKIP_TWICE), []
    for update, gradient in enumerate((FINITE, NON_FINITE, FINITE, FINITE)):
        context = guard.step_context(update, lambda applied: 10.0 + applied)
        guard.decide([gradient], [], context)
        steps.append((context.update, context.steps_applied, context.lr))

    assert steps == [(0, 0, 10.0), (1, 1, 11.0), (2, 1, 11.0), (3, 2, 12.0)]


def test_an_overflow_halves_a_dynamic_scale_and_skips_without_limit() -> None:
    guard = dynamic_scale_guard(2.0**12)
    outcomes = [outcome(guard, NON_FINITE) for _ in range(36)]

    assert outcomes == [SKIP] * 36
    assert (guard.loss_scale.scale_at(0), guard.consecutive_skips) == (2.0**-24, 0)
    assert outcome(guard, NON_FINITE) == STOP


def test_a_non_finite_loss_does_not_change_the_scale() -> None:
    guard = dynamic_scale_guard()

    assert outcome(guard, NON_FINITE, loss=torch.nan) == STOP
    assert guard.loss_scale.scale_at(0) == 64.0


def test_the_context_has_the_scale_of_the_last_applied_update() -> None:
    guard, seen = dynamic_scale_guard(), []
    for update, gradient in enumerate((FINITE, NON_FINITE, NON_FINITE, FINITE, FINITE)):
        context = guard.step_context(update, float)
        guard.decide([gradient], [], context)
        seen.append((context.loss_scale, context.previous_loss_scale))

    assert seen == [(64, 64), (64, 64), (32, 64), (16, 64), (16, 16)]


def test_gradients_of_all_processes_are_counted_together() -> None:
    counter = GradientRangeCounter(FLOAT16, count_ranges=True, saturates=False)
    guard = dynamic_scale_guard(
        counters=[counter, GradientRangeCounter(FLOAT16, False, True)],
        control=TwoProcesses(0, 0, 0, 2, 3, 0, 90),
    )
    counter([torch.tensor([9000.0, 1.0, 5000.0, 0.0])])
    decision = decide(guard, update=11)

    assert guard.loss_scale.scale_at(12) == 32.0
    (notice,) = decision.notices
    assert (notice.kind, notice.update) == ("loss_scale", 12)
    assert "halved to 32 at update 12: 3 of 94 gradients are near overflow" in notice.text


def test_a_doubled_scale_has_a_notice() -> None:
    counter = GradientRangeCounter(FLOAT16, count_ranges=True, saturates=False)
    guard = dynamic_scale_guard(counters=[counter])
    counter([torch.tensor([0.0, 1.0])])
    decision = decide(guard)

    text = decision.notices[0].text
    assert "doubled to 128 at update 1: 1 of 2 gradients are near underflow" in text


def test_a_skipped_update_has_a_notice_with_its_number() -> None:
    guard = StepGuard(policy=SKIP_TWICE)
    (notice,) = decide(guard, NON_FINITE, update=6).notices

    assert (notice.kind, notice.update) == ("skipped", 7)
    assert "update 7 was skipped: its gradients are not finite" in notice.text
    assert "(1 update skipped so far)" in notice.text


def test_a_restored_guard_has_the_same_state() -> None:
    guard = dynamic_scale_guard(policy=SKIP_TWICE)
    for gradient in (FINITE, NON_FINITE, NON_FINITE):
        outcome(guard, gradient)
    other = dynamic_scale_guard(policy=SKIP_TWICE)
    other.load_state(GuardState(**guard.state()))  # type: ignore[arg-type]  # values from JSON

    assert other.state() == guard.state()
    assert (
        other.step_context(3, float)
        == guard.step_context(3, float)
        == StepContext(1.0, 3, 1, 16.0, 64.0)
    )


def test_a_planned_scale_is_not_restored() -> None:
    guard = StepGuard(loss_scale=LossScale(LossScalePlan(8, 8)))
    guard.load_state(GuardState(dynamic_scale=1024.0, last_applied_scale=512.0))
    context = guard.step_context(0, float)

    assert (context.loss_scale, context.previous_loss_scale) == (8.0, 512.0)
