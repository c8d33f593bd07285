"""The planned loss scale: its levels, their starts, and their text."""

import math
from typing import Any

import pytest
from support.sweeps import sweep

from convoy.config.schema import build_config
from convoy.planning.loop import LossScalePlan, ScaleLevel
from convoy.planning.plan import plan_phases, plan_run
from convoy.planning.render import loss_scale_as_text


def make_plan(first: float, last: float, epochs: int, per_epoch: int = 1) -> LossScalePlan:
    return LossScalePlan(first, last, updates_per_epoch=per_epoch, updates=epochs * per_epoch)


def planned(**values: Any) -> LossScalePlan:
    return plan_run(
        build_config({"model": "resnet8", "data": "generated", **values})
    ).loop.loss_scale


def expected_scale(first: float, last: float, epochs: int, epoch: int) -> float:
    """The scale of an epoch, counted from 1."""
    levels = math.floor(math.log2(last // first)) + 1
    started = [level for level in range(levels) if level * math.floor(epochs / levels) + 1 <= epoch]
    return first * 2.0 ** started[-1]


def test_a_hundred_epochs_from_16_to_128_have_four_levels_of_25() -> None:
    plan = make_plan(16, 128, 100)
    scales = [plan.scale(epoch) for epoch in range(100)]

    assert scales == [16] * 25 + [32] * 25 + [64] * 25 + [128] * 25


@sweep("epochs", [*range(4, 20), 90, 101])
@sweep(("first", "last"), [(1, 1), (1, 2), (16, 128), (0.5, 4), (3, 12)])
def test_loss_scale_levels_start_as_documented(first: float, last: float, epochs: int) -> None:
    plan = make_plan(first, last, epochs, per_epoch=7)

    for update in range(plan.updates):
        epoch = update // 7 + 1
        assert plan.scale(update) == expected_scale(first, last, epochs, epoch), update


def test_the_last_level_has_the_remaining_epochs() -> None:
    assert make_plan(16, 128, 11).levels == (
        ScaleLevel(16, 0),
        ScaleLevel(32, 2),
        ScaleLevel(64, 4),
        ScaleLevel(128, 6),
    )


def test_a_run_with_fewer_epochs_than_levels_is_divided_by_updates() -> None:
    plan = make_plan(16, 128, epochs=3, per_epoch=6)

    assert [level.start for level in plan.levels] == [0, 4, 9, 13]


@sweep("updates", range(1, 8))
def test_the_last_update_of_any_run_has_the_final_scale(updates: int) -> None:
    plan = LossScalePlan(1, 8, updates_per_epoch=100, updates=updates)
    scales = [plan.scale(update) for update in range(updates)]

    assert scales == sorted(scales)
    assert scales[-1] == 8


def test_a_constant_scale_has_one_level() -> None:
    plan = planned(loss_scaling=128.0)

    assert plan.is_constant
    assert [plan.scale(update) for update in (0, 1, 10**9)] == [128.0] * 3


def test_an_automatic_scale_has_one_level() -> None:
    options = {"loss_scaling": 64.0, "initial_loss_scaling": 16.0, "auto_loss_scaling": True}
    plan = planned(precision="16.32", **options)

    assert (plan.initial, plan.final, plan.automatic) == (64.0, 64.0, True)
    assert not planned(**options).automatic


def test_fine_tuning_continues_with_the_final_scale() -> None:
    config = build_config(
        {
            "model": "resnet8",
            "data": "generated",
            "half_res_training": True,
            "fine_tune_epoch": 2,
            "fine_tune_first_trainable_layer": "fc",
            "weight_avg_strategy": "mean",
            "loss_scaling": 64.0,
            "initial_loss_scaling": 16.0,
        }
    )
    first, second = (phase.loop.loss_scale for phase in plan_phases(plan_run(config)))

    assert (len(first.levels), second.levels) == (3, (ScaleLevel(64.0, 0),))


@pytest.mark.parametrize(
    ("plan", "lines"),
    [
        (LossScalePlan(), []),
        (LossScalePlan(128, 128), ["loss scale     128"]),
        (
            LossScalePlan(1, 1, automatic=True),
            ["loss scale     starts at 1, then automatic"],
        ),
        (
            make_plan(16, 64, 9, per_epoch=5),
            ["loss scale     starts at 16, 32 after 3 epochs, 64 after 6 epochs"],
        ),
        (
            make_plan(1, 4, 1, per_epoch=7),
            ["loss scale     starts at 1, 2 after 2 updates, 4 after 4 updates"],
        ),
        (make_plan(1, 2, 2, per_epoch=7), ["loss scale     starts at 1, 2 after 1 epoch"]),
    ],
)
def test_the_plan_shows_when_the_loss_scale_changes(plan: LossScalePlan, lines: list[str]) -> None:
    assert list(loss_scale_as_text(plan)) == lines
