"""Runs with a dynamic loss scale, and runs that are resumed with one."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support.small_run import SmallRun, small_plan, small_run

from convoy.engine.step_guard import GuardState
from convoy.events import Noticed, Reported
from convoy.numerics.loss_scale import GradientRangeCounter
from convoy.numerics.precision import FLOAT16
from convoy.planning.loop import LossScalePlan


def dynamic_scale_run(first: float, updates: int = 12, stop_after: int | None = None) -> SmallRun:
    """A run whose fp32 gradients are counted as fp16; above 2^128 they really overflow."""
    plan = small_plan(updates, reports=4, stop_after=stop_after)
    run = small_run(replace(plan, loss_scale=LossScalePlan(first, first, automatic=True)))
    (group,) = run.trainer.update_step.groups
    group.gradients.gradient_hook = counter = GradientRangeCounter(
        FLOAT16, count_ranges=True, saturates=False
    )
    run.trainer.update_step.guard.counters = [counter]
    return run


def scales(run: SmallRun) -> list[float]:
    return [event.loss_scale for event in run.events if isinstance(event, Reported)]


def notices(run: SmallRun) -> list[str]:
    return [event.text for event in run.events if isinstance(event, Noticed)]


def test_gradients_that_overflow_halve_the_scale_and_change_nothing() -> None:
    run = dynamic_scale_run(2.0**131, updates=3)
    before = run.weights()
    run.train()

    assert scales(run) == [2.0**131, 2.0**130, 2.0**129]
    assert "halved to 1.361129468e+39 at update 1: gradients are not finite" in notices(run)[0]
    assert "skipped" in notices(run)[0]
    assert run.trainer.update_step.guard.skipped == 3
    assert all(torch.equal(item, before[name]) for name, item in run.weights().items())


def test_the_scale_is_halved_until_no_gradient_is_near_overflow() -> None:
    run = dynamic_scale_run(2.0**20, updates=12)
    before = run.weights()
    run.train()
    seen = scales(run)

    assert seen[:3] == [2.0**20, 2.0**19, 2.0**18]
    assert all(item in (last, last / 2) for last, item in pairwise(seen))
    assert seen[-1] == seen[-2] > 1  # doubling would bring gradients near overflow
    assert run.trainer.update_step.guard.skipped == 0
    assert not all(torch.equal(item, before[name]) for name, item in run.weights().items())
    assert "gradients are near overflow" in notices(run)[0]


def test_gradients_near_underflow_double_the_scale() -> None:
    run = dynamic_scale_run(2.0**-20, updates=5)
    run.train()

    assert scales(run) == [2.0**exponent for exponent in (-20, -19, -18, -17, -16)]


@pytest.mark.parametrize("first", [2.0**131, 2.0**20, 2.0**-20])
@pytest.mark.parametrize("update", [1, 2, 4])
def test_a_run_stopped_between_scale_changes_resumes_with_the_same_bits(
    first: float, update: int
) -> None:
    full, before = dynamic_scale_run(first), dynamic_scale_run(first, stop_after=update)
    full.train()
    before.train()
    after = dynamic_scale_run(first)
    copy_state(before, after, update)
    after.train(update)

    assert scales(before) + scales(after) == scales(full)
    assert all(torch.equal(item, full.weights()[name]) for name, item in after.weights().items())


def copy_state(before: SmallRun, after: SmallRun, update: int) -> None:
    """Copy what a checkpoint contains: weights, optimizer state, loss scale."""
    old, new = (run.trainer.update_step.groups[0].optimizer for run in (before, after))
    after.network.load_state_dict(before.network.state_dict())
    new.load_state(old.named_state())
    after.network.position.resume_after(update)
    record = GuardState(**before.trainer.update_step.guard.state())  # type: ignore[arg-type]
    after.trainer.update_step.guard.load_state(record)
