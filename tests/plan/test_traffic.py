"""When receives begin: as torch's runtime really orders them; and what is held meanwhile."""

import pytest
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_send_recv,
    _ComputationType,
)

from convoy.plan.activations import Passage
from convoy.plan.memory import _enough, _place
from convoy.plan.schedules import SCHEDULES, Action, Forward
from convoy.plan.traffic import Event, Place, Receive, events_of, most_held

KINDS = {
    _ComputationType.FORWARD: "F",
    _ComputationType.FULL_BACKWARD: "B",
    _ComputationType.RECV_F: "receive F",
    _ComputationType.RECV_B: "receive B",
}


def torch_action(stage: int, action: Action) -> _Action:
    forward = isinstance(action, Forward)
    kind = _ComputationType.FORWARD if forward else _ComputationType.FULL_BACKWARD
    return _Action(stage, kind, action.micro)


def torch_events(name: str, stages: int, micro_batches: int) -> list[list[str]]:
    orders = {
        stage: [
            torch_action(stage, one)
            for one in SCHEDULES[name].actions(stage, stages, micro_batches)
        ]
        for stage in range(stages)
    }
    ordered = _add_send_recv(orders, stage_to_rank=lambda stage: stage, num_stages=stages)
    return [
        [
            f"{KINDS[one.computation_type]}{one.microbatch_index}"
            for one in ordered[stage]
            if one.computation_type in KINDS
        ]
        for stage in range(stages)
    ]


def as_word(event: Event) -> str:
    return f"receive {event.made_by}" if isinstance(event, Receive) else str(event)


@pytest.mark.parametrize("name", ["grouped", "interleaved", "sequential"])
@pytest.mark.parametrize("stages", range(1, 7))
def test_receives_stand_where_torch_puts_them(name: str, stages: int):
    ours = events_of(SCHEDULES[name], stages, 4 * stages)

    assert [[as_word(one) for one in events] for events in ours] == torch_events(
        name, stages, 4 * stages
    )


PASSAGE = Passage(came_in=3, goes_out=7, between=100, forward=150, backward=190)


def test_a_stage_alone_holds_one_pass():
    (events,) = events_of(SCHEDULES["grouped"], 1, 4)

    assert most_held(PASSAGE, events, Place(0, 1, 1)) == 190


def test_what_waits_and_what_is_on_its_way_comes_on_top():
    first, last = events_of(SCHEDULES["interleaved"], 2, 4)

    assert most_held(PASSAGE, first, Place(0, 2, 2)) == 100 + 190
    # The next input comes in, and one gradient sent back is not known to have arrived.
    assert most_held(PASSAGE, last, Place(1, 2, 2)) == 190 + 3 + 3


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", range(1, 7))
def test_a_longer_update_holds_no_more_than_the_planned_part_of_it(name: str, stages: int):
    schedule, long = SCHEDULES[name], 12 * stages
    part = _enough(schedule, stages, long)
    for stage in range(stages):
        held = [
            most_held(
                PASSAGE,
                events_of(schedule, stages, count)[stage],
                _place(schedule, stage, stages, long),
            )
            for count in (part, long)
        ]

        assert held[0] == held[1]
