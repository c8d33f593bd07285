"""The state is validated before it is saved or restored."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.engine.metrics import Totals
from convoy.engine.step_guard import GuardState
from convoy.errors import CheckpointError, NumericError
from convoy.run.state import _read_guard_state, _read_totals, check_finite

ROOT = Path(__file__).parents[2]
METER = {"loss": 1.5, "right": 3, "micro_batches": 2, "samples": 8}
RECORD = {
    "dynamic_scale": 64.0,
    "last_applied_scale": 32.0,
    "skipped": 3,
    "max_scale": 128.0,
    "finite_updates": 7,
    "consecutive_skips": 1,
}
OLD_NAMES = ("followed", "before", "skipped", "ceiling", "calm", "in_a_row")
BROKEN_METERS = [None, [], {}, "loss", METER | {"loss": 1}, METER | {"right": 0.5}]
BROKEN_METERS += [METER | {"left_out": None}, {"loss": 1.5}, METER | {"samples": "8"}]
BROKEN_RECORDS = [[], {}, 3, RECORD | {"dynamic_scale": "64"}]
BROKEN_RECORDS += [RECORD | {"last_applied_scale": -1.0}, {"dynamic_scale": None}]
BROKEN_RECORDS += [RECORD | {"skipped": 0.5}, RECORD | {"max_scale": 0.0}]


def test_metric_totals_round_trip() -> None:
    assert _read_totals(METER) == Totals(1.5, 2, 3, 8, 0)
    assert _read_totals(METER | {"left_out": 1}) == Totals(1.5, 2, 3, 8, 1)


@pytest.mark.parametrize("meter", BROKEN_METERS)
def test_invalid_metric_totals_are_refused(meter: Any) -> None:
    with pytest.raises(CheckpointError, match=r"metric totals .*'meter'"):
        _read_totals(meter)


def test_a_loss_scale_round_trips_and_older_checkpoints_have_none() -> None:
    assert _read_guard_state({"step_guard": RECORD}) == GuardState(64.0, 32.0, 3, 128.0, 7, 1)
    assert _read_guard_state({}) == GuardState()


def test_the_loss_scale_of_an_older_checkpoint_is_read_under_its_old_names() -> None:
    old = dict(zip(OLD_NAMES, RECORD.values(), strict=True))

    assert _read_guard_state({"judge": old}) == GuardState(64.0, 32.0, 3, 128.0, 7, 1)


@pytest.mark.parametrize("saved", BROKEN_RECORDS)
def test_a_checkpoint_with_an_invalid_loss_scale_is_refused(saved: Any) -> None:
    with pytest.raises(CheckpointError, match=r"loss scale .*'step_guard'"):
        _read_guard_state({"step_guard": saved})


@pytest.mark.processes
def test_invalid_state_is_refused_even_without_asserts() -> None:
    script = f"""
from convoy.errors import CheckpointError
from convoy.run.state import _read_guard_state, _read_totals

assert False, "asserts are off"
refused = 0
records = [{{"step_guard": record}} for record in {BROKEN_RECORDS!r}]
for read, values in ((_read_totals, {BROKEN_METERS!r}), (_read_guard_state, records)):
    for value in values:
        try:
            read(value)
        except CheckpointError:
            refused += 1
print(refused)
"""
    process = subprocess.run(
        [sys.executable, "-O", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert int(process.stdout) == len(BROKEN_METERS) + len(BROKEN_RECORDS)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_tensor_that_is_not_finite_is_refused_with_its_name(bad: float) -> None:
    weights = {"conv.weight": torch.zeros(2), "fc.bias": torch.tensor([0.0, bad])}
    with pytest.raises(NumericError) as error:
        check_finite(weights, update=7)

    assert "fc.bias" in str(error.value) and "update 7" in str(error.value)
    check_finite({"conv.weight": weights["conv.weight"]}, update=7)
