"""Sums since the last report: added in order, kept and taken up again."""

import math
from dataclasses import asdict

import torch

from convoy.engine.metrics import Meter, Totals
from convoy.parallel.executor import MicroBatchResult

LOSSES = [0.1, 1e8, 2.3, -1e8, 1e-3, 7.7, 0.3]


def passed(losses: list[float], right: int = 2, samples: int = 4) -> list[MicroBatchResult]:
    """Losses in 64 bits, so that the order of their sum can be seen."""
    return [
        MicroBatchResult(torch.tensor(loss, dtype=torch.float64), torch.tensor(right), samples)
        for loss in losses
    ]


def add(meter: Meter, results: list[MicroBatchResult]) -> None:
    meter.add(results, len(results))


def test_a_new_meter_is_empty():
    assert Meter().totals() == Totals(0.0, 0, 0, 0)


def test_totals_sum_losses_correct_predictions_and_samples():
    meter = Meter()
    add(meter, passed([0.5, 0.25]))
    add(meter, passed([1.0], right=3, samples=8))

    assert meter.totals() == Totals(loss=1.75, micro_batches=3, right=7, samples=16)


def test_a_non_finite_loss_is_counted_and_left_out():
    meter = Meter()
    add(meter, passed([0.5, math.nan, 0.25, math.inf, -math.inf]))

    assert meter.totals() == Totals(0.75, 2, right=4, samples=8, left_out=3)


def test_reading_twice_counts_once():
    meter = Meter()
    add(meter, passed([0.5]))

    assert meter.totals() == meter.totals() == Totals(0.5, 1, 2, 4)


def test_losses_are_added_in_micro_batch_order():
    in_order = 0.0
    for loss in LOSSES:
        in_order += loss
    at_once, often = Meter(), Meter()
    add(at_once, passed(LOSSES))
    for loss in LOSSES:
        add(often, passed([loss]))
        often.totals()

    assert at_once.totals().loss == often.totals().loss == in_order
    assert in_order != sum(sorted(LOSSES))  # the order can be seen


def test_a_restored_meter_continues_with_the_same_sums():
    straight, first, second = Meter(), Meter(), Meter()
    add(straight, passed(LOSSES))
    add(first, passed(LOSSES[:3]))
    second.reset(Totals(**asdict(first.totals())))
    add(second, passed(LOSSES[3:]))

    assert second.totals() == straight.totals()


def test_a_new_report_starts_from_zero():
    meter = Meter()
    add(meter, passed([0.5]))
    meter.totals()
    meter.reset(Totals())

    assert meter.totals() == Totals()


def test_reset_discards_pending_results():
    meter = Meter()
    add(meter, passed([0.5]))
    meter.reset(Totals(1.0, 1, 1, 1))

    assert meter.totals() == Totals(1.0, 1, 1, 1)


def test_totals_are_plain_numbers():
    meter = Meter()
    add(meter, passed([0.5]))

    assert {type(value) for value in asdict(meter.totals()).values()} == {float, int}


def test_a_process_without_results_gathers_rows_of_zeros():
    requested: list[torch.Tensor] = []

    def rows_of_all(rows: torch.Tensor) -> torch.Tensor:
        requested.append(rows)
        return torch.tensor([[0.5, 3.0, 4.0], [0.25, 1.0, 4.0]], dtype=torch.float64)

    meter = Meter(rows_of_all)
    meter.add([], 3)
    meter.add([], 3)

    assert meter.totals() == Totals(loss=0.75, micro_batches=2, right=4, samples=8)
    assert torch.equal(requested[0], torch.zeros(6, 3, dtype=torch.float64))
