"""The text curve of a learning rate: one complete example, and its width."""

from typing import Any

import pytest

from convoy.config.schema import build_config
from convoy.planning.loop import LoopPlan
from convoy.planning.plan import plan_phases, plan_run
from convoy.planning.render import phases_as_text, rate_as_text


def loop(**options: Any) -> LoopPlan:
    return plan_run(build_config({"model": "resnet8", "epoch": 4, **options})).loop


def test_steps_are_drawn_as_steps():
    options = {"lr_schedule": "step", "lr_epoch_decay": (1.0, 2.0), "lr_decay": 0.5, "lr": 0.8}

    assert rate_as_text(loop(**options), 22) == [
        "0.8 │█████",
        "    │█████",
        "    │█████████",
        "    │█████████████████",
        "  0 └─────────────────",
        "     epoch 0         4",
        "",
        "update  epoch   lr",
        "     0      0  0.8",
        "   250      1  0.4",
        "   500      2  0.2",
    ]


def test_a_rate_grows_by_eighths_of_a_line():
    first, second, third, fourth, *_ = rate_as_text(loop(epoch=1, warmup_epoch=1), 100)
    heights = [
        sum(" ▁▂▃▄▅▆▇█".index(cell) for cell in column)
        for column in zip(*(item.ljust(80) for item in (first, second, third, fourth)), strict=True)
        if not set(column) - set(" ▁▂▃▄▅▆▇█")
    ]

    assert max(heights) == 32
    assert len(set(heights)) > 20


def test_a_positive_rate_is_never_drawn_as_empty():
    options = {"lr_schedule": "step", "lr_epoch_decay": (2.0,), "lr_decay": 1e-9}
    lowest = rate_as_text(loop(**options), 80)[3]

    assert lowest.endswith("█▁" + "▁" * 31)


def test_many_drops_are_counted_in_the_table():
    lines = rate_as_text(loop(lr_schedule="exponential", lr_drops=40), 80)

    assert lines[-2].split() == ["…", "29", "more", "…"]
    assert lines[-1].split()[:2] == ["975", "3.9"]


@pytest.mark.parametrize("width", [1, 20, 40, 66, 80, 200])
def test_the_curve_stays_within_the_width(width: int):
    curve = rate_as_text(loop(warmup_epoch=1), width)[:6]

    assert max(map(len, curve)) <= max(width, 18)
    assert all(len(line) <= 73 for line in curve)


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"lr_schedule": "step"}])
def test_a_constant_rate_is_not_drawn(options: dict[str, Any]):
    assert rate_as_text(loop(**options), 80) == []
    assert "└" not in "\n".join(
        phases_as_text(plan_run(build_config({"model": "resnet8", **options})), 80)
    )


def test_the_rate_of_a_single_update_is_not_drawn():
    assert rate_as_text(loop(epoch=None, updates=1), 80) == []


def test_two_updates_are_drawn():
    assert rate_as_text(loop(epoch=None, updates=2), 80)[-2:] == [
        "     0      0   0.1",
        "     1  0.004  0.05",
    ]


def test_each_phase_has_a_curve_and_its_epochs():
    options = {
        "half_res_training": True,
        "weight_avg_strategy": "mean",
        "fine_tune_epoch": 2,
        "fine_tune_first_trainable_layer": "layer2",
    }
    plan = plan_run(build_config({"model": "resnet8", "epoch": 4, **options}))
    axes = [
        line.split() for line in phases_as_text(plan, 80) if " epoch " in line and "up" not in line
    ]

    assert [axis for axis in axes if len(axis) == 3] == [["epoch", "0", "4"], ["epoch", "4", "6"]]
    assert len(plan_phases(plan)) == 2
