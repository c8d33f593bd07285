"""Sums since the last report are added in order and can be restored."""

import math
from dataclasses import asdict

import torch

from convoy.engine.metrics import Meter, Totals
from convoy.parallel.executor import MicroBatchResult

LOSSES = [0.1, 1e8, 2.3, -1e8, 1e-3, 7.7, 0.3]


def results_of(losses: list[float], right: int = 2, samples: int = 4) -> list[MicroBatchResult]:
    """Results with float64 losses, whose sum depends on the order."""
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
    add(meter, results_of([0.5, 0.25]))
    add(meter, results_of([1.0], right=3, samples=8))

    assert meter.totals() == Totals(loss=1.75, micro_batches=3, right=7, samples=16)


def test_a_non_finite_loss_is_counted_and_excluded():
    meter = Meter()
    add(meter, results_of([0.5, math.nan, 0.25, math.inf, -math.inf]))

    assert meter.totals() == Totals(0.75, 2, right=4, samples=8, left_out=3)


def test_reading_twice_counts_once():
    meter = Meter()
    add(meter, results_of([0.5]))

    assert meter.totals() == meter.totals() == Totals(0.5, 1, 2, 4)


def test_losses_are_added_in_micro_batch_order():
    in_order = 0.0
    for loss in LOSSES:
        in_order += loss
    at_once, repeated = Meter(), Meter()
    add(at_once, results_of(LOSSES))
    for loss in LOSSES:
        add(repeated, results_of([loss]))
        repeated.totals()

    assert at_once.totals().loss == repeated.totals().loss == in_order
    assert in_order != sum(sorted(LOSSES))  # the order matters


def test_a_restored_meter_continues_with_the_same_sums():
    uninterrupted, first, second = Meter(), Meter(), Meter()
    add(uninterrupted, results_of(LOSSES))
    add(first, results_of(LOSSES[:3]))
    second.reset(Totals(**asdict(first.totals())))
    add(second, results_of(LOSSES[3:]))

    assert second.totals() == uninterrupted.totals()


def test_a_new_report_starts_from_zero():
    meter = Meter()
    add(meter, results_of([0.5]))
    meter.totals()
    meter.reset(Totals())

    assert meter.totals() == Totals()


def test_reset_discards_pending_results():
    meter = Meter()
    add(meter, results_of([0.5]))
    meter.reset(Totals(1.0, 1, 1, 1))

    assert meter.totals() == Totals(1.0, 1, 1, 1)


def test_totals_are_plain_numbers():
    meter = Meter()
    add(meter, results_of([0.5]))

    assert {type(value) for value in asdict(meter.totals()).values()} == {float, int}


def test_a_process_without_results_gathers_rows_of_zeros():
    gathered: list[torch.Tensor] = []

    def gather_rows(rows: torch.Tensor) -> torch.Tensor:
        gathered.append(rows)
        return torch.tensor([[0.5, 3.0, 4.0], [0.25, 1.0, 4.0]], dtype=torch.float64)

    meter = Meter(gather_rows)
    meter.add([], 3)
    meter.add([], 3)

    assert meter.totals() == Totals(loss=0.75, micro_batches=2, right=4, samples=8)
    assert torch.equal(gathered[0], torch.zeros(6, 3, dtype=torch.float64))
