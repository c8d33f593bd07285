"""Buckets start in a fixed order, late layers first, with two of them in flight."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree, Node
from convoy.parallel.collectives import (
    MAX_IN_FLIGHT,
    BucketedReducer,
    PendingWorks,
    overlapping_weights,
)

LAYERS = 6  # each has 16 elements


class EventLog:
    """Events in order; `slots` maps each used slot to the bucket in flight."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.slots: dict[int, str] = {}

    def take(self) -> str:
        """All events since the last call."""
        lines, self.lines = self.lines, []
        return " ".join(lines)


class LoggedWork(dist.Work):
    """A transfer that logs when it is waited for."""

    def __init__(self, log: EventLog, line: str) -> None:
        super().__init__()
        self.log = log
        self.line = line

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        del timeout
        self.log.lines.append(self.line)
        return True


class LoggedBucket:
    """A bucket that only logs its events: +3 started, 3 waited for, -3 finished."""

    def __init__(self, log: EventLog, name: str, elements: Sequence[range]) -> None:
        self.log = log
        self.name = name
        self.elements = list(elements)

    def element_ranges(self) -> list[range]:
        return self.elements

    def start(self, mine: list[Node], slot: int) -> PendingWorks:
        assert mine and slot not in self.log.slots
        self.log.slots[slot] = self.name
        self.log.lines.append(f"+{self.name}")
        return [LoggedWork(self.log, self.name)]

    def finish(self, mine: list[Node], slot: int) -> PendingWorks:
        assert mine and self.log.slots.pop(slot) == self.name
        self.log.lines.append(f"-{self.name}")
        return []


class ReducerScenario:
    """A network of equal layers and a reducer with the given buckets."""

    def __init__(self, ranges: Sequence[Sequence[range]]) -> None:
        self.weights = [nn.Parameter(torch.zeros(4, 4)) for _ in range(LAYERS)]
        named = {str(layer): weight for layer, weight in enumerate(self.weights)}
        self.tree = GradientTree(FlatParameters(named), expected_leaves=1)
        self.log = EventLog()
        buckets = [LoggedBucket(self.log, str(index), item) for index, item in enumerate(ranges)]
        self.reducer = BucketedReducer(self.tree, buckets)
        self.tree.register_summed_hook(self.reducer.start_ready)

    def backward(self, *layers: int) -> str:
        for layer in layers:
            self.weights[layer].sum().backward()
        return self.log.take()

    def finish(self) -> str:
        self.tree.collect()
        self.reducer.finish()
        self.tree.clear()
        return self.log.take()


def one_bucket_per_layer() -> list[list[range]]:
    return [[range(16 * layer, 16 * layer + 16)] for layer in range(LAYERS)]


def test_buckets_of_late_layers_start_first_and_two_are_in_flight() -> None:
    scenario = ReducerScenario(one_bucket_per_layer())

    assert scenario.backward(5) == "+5"
    assert scenario.backward(4) == "+4"
    assert scenario.backward(3) == "5 -5 +3"
    assert scenario.backward(2, 1, 0) == "4 -4 +2 3 -3 +1 2 -2 +0"
    assert scenario.finish() == "1 -1 0 -0"


def test_a_bucket_that_is_ready_early_waits_for_its_turn() -> None:
    scenario = ReducerScenario(one_bucket_per_layer())

    assert scenario.backward(0, 2, 4) == ""
    assert scenario.backward(5) == "+5 +4"
    assert scenario.backward(1, 3) == "5 -5 +3 4 -4 +2 3 -3 +1 2 -2 +0"


@pytest.mark.parametrize("reached", range(LAYERS + 1))
def test_buckets_that_no_hook_started_are_started_at_the_end(reached: int) -> None:
    scenario = ReducerScenario(one_bucket_per_layer())
    events = scenario.backward(*range(LAYERS - 1, LAYERS - 1 - reached, -1))
    for weight in scenario.weights[: LAYERS - reached]:
        weight.grad = torch.zeros_like(weight)  # without hooks, like a split backward
    events = f"{events} {scenario.finish()}".strip()

    assert events == "+5 +4 5 -5 +3 4 -4 +2 3 -3 +1 2 -2 +0 1 -1 0 -0"


def test_every_update_has_the_same_order_of_buckets() -> None:
    scenario = ReducerScenario(one_bucket_per_layer())
    events = [scenario.backward(5, 4, 3, 2, 1, 0) + scenario.finish() for _ in range(3)]

    assert len(set(events)) == 1 and scenario.log.slots == {}


def test_a_bucket_of_several_ranges_waits_for_its_earliest_layer() -> None:
    """Two shards of three layers each: every bucket contains a range of both shards."""
    scenario = ReducerScenario(
        [
            [range(16 * item, 16 * item + 16), range(48 + 16 * item, 64 + 16 * item)]
            for item in range(3)
        ]
    )

    assert scenario.backward(5, 4, 3) == ""
    assert scenario.backward(2) == "+2"
    assert scenario.backward(1, 0) == "+1 2 -2 +0"


def test_a_weight_belongs_to_every_range_it_overlaps() -> None:
    extents = [range(10), range(16, 40), range(48, 49)]

    assert overlapping_weights([range(16)], extents) == {0}
    assert overlapping_weights([range(10, 16)], extents) == set()
    assert overlapping_weights([range(32, 48)], extents) == {1}
    assert overlapping_weights([range(5, 17), range(48, 64)], extents) == {0, 1, 2}


def test_each_bucket_in_flight_has_a_slot() -> None:
    assert MAX_IN_FLIGHT == 2
