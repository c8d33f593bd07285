"""Layouts of one training: all possible, all different, and every choice is met."""

from itertools import product

import pytest

from convoy.config.resolve import resolve
from convoy.config.schema import RequestedOptions, settings_from
from convoy.plan.plan import plan_run
from convoy.plan.topology import Layout, all_layouts, resume_pairs


@pytest.mark.parametrize(("micro_batches", "peak"), list(product((1, 6, 8, 12, 24), (1, 4, 8))))
def test_every_layout_can_be_planned_and_has_the_same_samples(
    micro_batches: int, peak: int
) -> None:
    layouts = all_layouts(micro_batches, layers=40, max_processes=peak)
    values = [one.option_values(micro_batches) | {"model": "resnet8"} for one in layouts]
    options = [RequestedOptions(settings_from("test", one), environment={}) for one in values]
    plans = [plan_run(resolve(one).config) for one in options]

    assert {plan.batch.micro_batches for plan in plans} == {micro_batches}
    assert [plan.topology.processes for plan in plans] == [one.processes for one in layouts]
    assert all(one.processes <= peak for one in layouts)
    assert len(set(layouts)) == len(layouts)
    assert layouts[0] == Layout()


def test_twenty_four_micro_batches_cover_all_shapes_and_schedules() -> None:
    layouts = all_layouts(24, layers=40, max_processes=8)
    exact = [one for one in layouts if one.is_bit_exact]
    shapes = {(one.stages, one.replicas) for one in exact}

    assert len(exact) >= 24
    assert shapes == {
        (stages, replicas)
        for stages, replicas in product(range(1, 5), range(1, 5))
        if stages * replicas <= 8
    }
    assert {one.schedule for one in exact} == {
        "grouped",
        "interleaved",
        "sequential",
        "zero-bubble",
        "looped",
    }


def test_every_pair_of_options_occurs_together() -> None:
    exact = [one for one in all_layouts(24, layers=40, max_processes=8) if one.is_bit_exact]
    choices = [(one.recompute, one.offload, one.sharding, one.workers > 0) for one in exact]

    for first, second in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]:
        assert {(one[first], one[second]) for one in choices} == set(
            product((False, True), (False, True))
        )


def test_only_the_fast_reduction_is_not_bit_exact() -> None:
    inexact = [one for one in all_layouts(24, 40, 8) if not one.is_bit_exact]

    assert inexact == [Layout(replicas=4, reduction="fast")]


def test_resume_pairs_combine_four_shapes() -> None:
    pairs = resume_pairs(all_layouts(24, 40, 8))
    shapes = {(one.stages, one.replicas) for one, _ in pairs}

    assert len(pairs) == 12
    assert len(shapes) == 4
    assert all(before != after for before, after in pairs)


def test_a_single_process_has_no_resume_pairs() -> None:
    assert resume_pairs(all_layouts(1, 40, 1)) == []
