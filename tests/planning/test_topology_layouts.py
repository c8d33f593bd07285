"""All layouts of a run are valid and different, and together cover every choice."""

from itertools import product

import pytest

from convoy.config.resolve import resolve
from convoy.config.schema import RequestedOptions, settings_from
from convoy.planning.plan import plan_run
from convoy.planning.topology import Layout, all_layouts, resume_pairs


@pytest.mark.parametrize(
    ("micro_batches", "max_processes"), list(product((1, 6, 8, 12, 24), (1, 4, 8)))
)
def test_every_layout_can_be_planned_and_has_the_same_samples(
    micro_batches: int, max_processes: int
) -> None:
    layouts = all_layouts(micro_batches, layers=40, max_processes=max_processes)
    values = [layout.option_values(micro_batches) | {"model": "resnet8"} for layout in layouts]
    options = [RequestedOptions(settings_from("test", value), environment={}) for value in values]
    plans = [plan_run(resolve(option).config) for option in options]

    assert {plan.batch.micro_batches for plan in plans} == {micro_batches}
    assert [plan.topology.processes for plan in plans] == [layout.processes for layout in layouts]
    assert all(layout.processes <= max_processes for layout in layouts)
    assert len(set(layouts)) == len(layouts)
    assert layouts[0] == Layout()


def test_twenty_four_micro_batches_cover_all_shapes_and_schedules() -> None:
    layouts = all_layouts(24, layers=40, max_processes=8)
    exact = [layout for layout in layouts if layout.is_bit_exact]
    shapes = {(item.stages, item.replicas) for item in exact}

    assert len(exact) >= 24
    assert shapes == {
        (stages, replicas)
        for stages, replicas in product(range(1, 5), range(1, 5))
        if stages * replicas <= 8
    }
    assert {item.schedule for item in exact} == {
        "grouped",
        "interleaved",
        "sequential",
        "zero-bubble",
        "looped",
    }


def test_every_pair_of_options_occurs_together() -> None:
    exact = [
        layout for layout in all_layouts(24, layers=40, max_processes=8) if layout.is_bit_exact
    ]
    choices = [(item.recompute, item.offload, item.sharding, item.workers > 0) for item in exact]

    for first, second in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]:
        assert {(choice[first], choice[second]) for choice in choices} == set(
            product((False, True), (False, True))
        )


def test_only_the_fast_reduction_is_not_bit_exact() -> None:
    inexact = [layout for layout in all_layouts(24, 40, 8) if not layout.is_bit_exact]

    assert inexact == [Layout(replicas=4, reduction="fast")]


def test_resume_pairs_combine_four_shapes() -> None:
    pairs = resume_pairs(all_layouts(24, 40, 8))
    shapes = {(item.stages, item.replicas) for item, _ in pairs}

    assert len(pairs) == 12
    assert len(shapes) == 4
    assert all(before != after for before, after in pairs)


def test_a_single_process_has_no_resume_pairs() -> None:
    assert resume_pairs(all_layouts(1, 40, 1)) == []
