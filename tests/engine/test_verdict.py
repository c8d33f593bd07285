"""One ruling for all: what makes an update apply, be skipped or stop the run."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from convoy.engine.verdict import Judge, Policy, Record, Ruling
from convoy.numerics.loss_scale import LossScale, Tally
from convoy.numerics.types import FLOAT16
from convoy.optim.step import Step
from convoy.parallel.council import Matter, Single
from convoy.parallel.pipeline import Passed
from convoy.plan.loss_scale import LossScalePlan

FINE = torch.tensor([1.0, -2.0])
BAD = torch.tensor([1.0, torch.nan])
SKIPS = Policy(skips=True, most=2)


class Others(Single):
    """A council with one more process, which brings these notes."""

    def __init__(self, *notes: int) -> None:
        self.notes = list(notes)
        self.heard: list[tuple[Matter, int]] = []

    def tell(self, matter: Matter, update: int, notes: Sequence[int]) -> list[list[int]]:
        self.heard.append((matter, update))
        return [[*notes], self.notes]


def lost(*losses: float) -> list[Passed]:
    return [Passed(torch.tensor(loss), torch.tensor(0), 4) for loss in losses]


def ruled(judge: Judge, gradient: Tensor = FINE, loss: float = 2.0, update: int = 0) -> Ruling:
    return judge([FINE, gradient], lost(1.0, loss), judge.step(update, float))


def following(scale: float = 64.0, **more: Any) -> Judge:
    return Judge(loss_scale=LossScale(LossScalePlan(scale, scale, automatic=True)), **more)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("policy", "ruling"), [(Policy(), Ruling.STOP), (SKIPS, Ruling.SKIP)])
def test_a_gradient_that_is_not_finite_is_a_matter_of_the_policy(
    bad: float, policy: Policy, ruling: Ruling
) -> None:
    assert ruled(Judge(policy=policy), torch.tensor([bad, 0.0])) is ruling


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_so_is_a_loss(bad: float) -> None:
    assert ruled(Judge(), loss=bad) is Ruling.STOP
    assert ruled(Judge(policy=SKIPS), loss=bad) is Ruling.SKIP


def test_finite_numbers_and_a_process_without_any_pass() -> None:
    judge = Judge()

    assert ruled(judge) is Ruling.APPLY
    assert judge([torch.zeros(0)], [], Step(0.1)) is Ruling.APPLY


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_another_process_found_counts_as_our_own(place: int) -> None:
    notes = [0] * 7
    notes[place] = 1
    council = Others(*notes)

    assert ruled(Judge(council), update=6) is Ruling.STOP
    assert council.heard == [(Matter.VERDICT, 6)]


def test_so_many_in_a_row_may_be_skipped_and_no_more() -> None:
    judge = Judge(policy=SKIPS)
    rulings = [ruled(judge, one) for one in (BAD, BAD, FINE, BAD, BAD, BAD)]

    assert rulings == [
        Ruling.SKIP,
        Ruling.SKIP,
        Ruling.APPLY,
        Ruling.SKIP,
        Ruling.SKIP,
        Ruling.STOP,
    ]
    assert (judge.skipped, judge.in_a_row) == (4, 2)


def test_none_may_be_skipped_when_none_is_allowed() -> None:
    assert ruled(Judge(policy=Policy(skips=True, most=0)), BAD) is Ruling.STOP


def test_skipped_updates_move_neither_the_schedule_nor_what_was_applied() -> None:
    judge, steps = Judge(policy=SKIPS), []
    for update, gradient in enumerate((FINE, BAD, FINE, FINE)):
        at = judge.step(update, lambda applied: 10.0 + applied)
        judge([gradient], [], at)
        steps.append((at.update, at.applied, at.rate))

    assert steps == [(0, 0, 10.0), (1, 1, 11.0), (2, 1, 11.0), (3, 2, 12.0)]


def test_an_overflow_halves_a_scale_that_follows_and_skips_without_limit() -> None:
    judge = following(2.0**12)
    rulings = [ruled(judge, BAD) for _ in range(36)]

    assert rulings == [Ruling.SKIP] * 36
    assert (judge.loss_scale.at(0), judge.in_a_row) == (2.0**-24, 0)
    assert ruled(judge, BAD) is Ruling.STOP


def test_a_loss_that_is_not_finite_is_not_mended_by_another_scale() -> None:
    judge = following()

    assert ruled(judge, BAD, loss=torch.nan) is Ruling.STOP
    assert judge.loss_scale.at(0) == 64.0


def test_the_scale_of_the_last_update_that_was_applied_is_handed_on() -> None:
    judge, seen = following(), []
    for update, gradient in enumerate((FINE, BAD, BAD, FINE, FINE)):
        at = judge.step(update, float)
        judge([gradient], [], at)
        seen.append((at.scale, at.scale_before))

    assert seen == [(64, 64), (64, 64), (32, 64), (16, 64), (16, 16)]


def test_gradients_of_all_processes_are_counted_together() -> None:
    tally = Tally(FLOAT16, counts=True, saturates=False)
    judge = following(
        tallies=[tally, Tally(FLOAT16, False, True)], council=Others(0, 0, 0, 2, 3, 0, 90)
    )
    tally([torch.tensor([9000.0, 1.0, 5000.0, 0.0])])
    ruled(judge, update=11)

    assert judge.loss_scale.at(12) == 32.0
    assert [(one.kind, one.text, one.update) for one in judge.verdict.notices] == [
        (
            "loss_scale",
            "halved to 32 at update 12: 3 of 94 gradients are near overflow",
            12,
        )
    ]


def test_a_doubled_scale_is_told_too() -> None:
    tally = Tally(FLOAT16, counts=True, saturates=False)
    judge = following(tallies=[tally])
    tally([torch.tensor([0.0, 1.0])])
    ruled(judge)

    assert judge.verdict.notices[0].text == (
        "doubled to 128 at update 1: 1 of 2 gradients are about to vanish"
    )


def test_a_skipped_update_is_told_with_its_number() -> None:
    judge = Judge(policy=SKIPS)
    ruled(judge, BAD, update=6)
    (notice,) = judge.verdict.notices

    assert (notice.kind, notice.update) == ("skipped", 7)
    assert notice.text == "update 7 is skipped: its gradients are not finite (1 so far)"


def test_what_is_recorded_goes_on_as_it_was() -> None:
    judge = following(policy=SKIPS)
    for gradient in (FINE, BAD, BAD):
        ruled(judge, gradient)
    other = following(policy=SKIPS)
    other.go_on_from(Record(**judge.record()))  # type: ignore[arg-type]  # as it was written

    assert other.record() == judge.record()
    assert other.step(3, float) == judge.step(3, float) == Step(1.0, 3, 1, 16.0, 64.0)


def test_a_planned_scale_is_not_taken_from_a_record() -> None:
    judge = Judge(loss_scale=LossScale(LossScalePlan(8, 8)))
    judge.go_on_from(Record(followed=1024.0, before=512.0))
    at = judge.step(0, float)

    assert (at.scale, at.scale_before) == (8.0, 512.0)
