"""Portions in their turns: late layers first, two under way, the same order in every update."""

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

LAYERS = 6  # of 16 elements each


class EventLog:
    """What happened, in order; `slots` holds who is under way."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.slots: dict[int, str] = {}

    def take(self) -> str:
        """All lines since the last time."""
        lines, self.lines = self.lines, []
        return " ".join(lines)


class LoggedWork(dist.Work):
    """A message that writes down when it was waited for."""

    def __init__(self, diary: EventLog, line: str) -> None:
        super().__init__()
        self.diary = diary
        self.line = line

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        del timeout
        self.diary.lines.append(self.line)
        return True


class Told:
    """A portion that only writes down its turns: +3 begun, 3 waited for, -3 settled."""

    def __init__(self, diary: EventLog, name: str, elements: Sequence[range]) -> None:
        self.diary = diary
        self.name = name
        self.elements = list(elements)

    def element_ranges(self) -> list[range]:
        return self.elements

    def start(self, mine: list[Node], slot: int) -> PendingWorks:
        assert mine and slot not in self.diary.slots
        self.diary.slots[slot] = self.name
        self.diary.lines.append(f"+{self.name}")
        return [LoggedWork(self.diary, self.name)]

    def finish(self, mine: list[Node], slot: int) -> PendingWorks:
        assert mine and self.diary.slots.pop(slot) == self.name
        self.diary.lines.append(f"-{self.name}")
        return []


class ReducerScenario:
    """A network of equal layers, a portion for each, and an exchange that follows the tree."""

    def __init__(self, stretches: Sequence[Sequence[range]]) -> None:
        self.weights = [nn.Parameter(torch.zeros(4, 4)) for _ in range(LAYERS)]
        named = {str(place): weight for place, weight in enumerate(self.weights)}
        self.tree = GradientTree(FlatParameters(named), expected_leaves=1)
        self.diary = EventLog()
        portions = [Told(self.diary, str(item), parts) for item, parts in enumerate(stretches)]
        self.exchange = BucketedReducer(self.tree, portions)
        self.tree.register_summed_hook(self.exchange.start_ready)

    def backward(self, *places: int) -> str:
        for place in places:
            self.weights[place].sum().backward()
        return self.diary.take()

    def finish(self) -> str:
        self.tree.collect()
        self.exchange.finish()
        self.tree.clear()
        return self.diary.take()


def each_layer() -> list[list[range]]:
    return [[range(16 * layer, 16 * layer + 16)] for layer in range(LAYERS)]


def test_buckets_of_late_layers_start_first_and_two_are_in_flight() -> None:
    scene = ReducerScenario(each_layer())

    assert scene.backward(5) == "+5"
    assert scene.backward(4) == "+4"
    assert scene.backward(3) == "5 -5 +3"
    assert scene.backward(2, 1, 0) == "4 -4 +2 3 -3 +1 2 -2 +0"
    assert scene.finish() == "1 -1 0 -0"


def test_a_bucket_that_is_ready_early_waits_for_its_turn() -> None:
    scene = ReducerScenario(each_layer())

    assert scene.backward(0, 2, 4) == ""
    assert scene.backward(5) == "+5 +4"
    assert scene.backward(1, 3) == "5 -5 +3 4 -4 +2 3 -3 +1 2 -2 +0"


@pytest.mark.parametrize("reached", range(LAYERS + 1))
def test_buckets_that_no_hook_started_are_started_at_the_end(reached: int) -> None:
    scene = ReducerScenario(each_layer())
    reported = scene.backward(*range(LAYERS - 1, LAYERS - 1 - reached, -1))
    for weight in scene.weights[: LAYERS - reached]:
        weight.grad = torch.zeros_like(weight)  # past the hooks, as torch's split backward does
    reported = f"{reported} {scene.finish()}".strip()

    assert reported == "+5 +4 5 -5 +3 4 -4 +2 3 -3 +1 2 -2 +0 1 -1 0 -0"


def test_every_update_has_the_same_order_of_buckets() -> None:
    scene = ReducerScenario(each_layer())
    reported = [scene.backward(5, 4, 3, 2, 1, 0) + scene.finish() for _ in range(3)]

    assert len(set(reported)) == 1 and scene.diary.slots == {}


def test_a_bucket_of_several_ranges_waits_for_its_earliest_layer() -> None:
    """Two shards of three layers each: a portion takes a stretch of both."""
    scene = ReducerScenario(
        [
            [range(16 * item, 16 * item + 16), range(48 + 16 * item, 64 + 16 * item)]
            for item in range(3)
        ]
    )

    assert scene.backward(5, 4, 3) == ""
    assert scene.backward(2) == "+2"
    assert scene.backward(1, 0) == "+1 2 -2 +0"


def test_a_weight_belongs_to_every_range_it_overlaps() -> None:
    extents = [range(10), range(16, 40), range(48, 49)]

    assert overlapping_weights([range(16)], extents) == {0}
    assert overlapping_weights([range(10, 16)], extents) == set()
    assert overlapping_weights([range(32, 48)], extents) == {1}
    assert overlapping_weights([range(5, 17), range(48, 64)], extents) == {0, 1, 2}


def test_each_bucket_in_flight_has_a_slot() -> None:
    assert MAX_IN_FLIGHT == 2
