"""When a stage begins to receive: torch's runtime puts the receives between our actions.

It walks through the stages in turn, one action each, and asks for a tensor as soon as its sender
has had the action that makes it. Memory for it is taken from that moment on.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from convoy.plan.actions import Action, Backward, BackwardInput, BackwardWeight, Forward
from convoy.plan.activations import Passage
from convoy.plan.schedule import Schedule


@dataclass(frozen=True)
class Receive:
    """The beginning of a transfer: of a forward's result, or of a backward's gradient."""

    made_by: Action


Event = Action | Receive


def events_of(schedule: Schedule, stages: int, micro_batches: int) -> list[list[Event]]:
    """The order of each stage with its receives."""
    # Each stage as if it had a process to itself: one that holds several never holds more.
    lists = [schedule.actions(stage, stages, micro_batches) for stage in range(stages)]
    orders = [deque(replace(action, stage=None) for action in one) for one in lists]
    events: list[list[Event]] = [[] for _ in orders]
    arriving: list[set[Action]] = [set() for _ in orders]
    while any(orders):
        for stage, order in enumerate(orders):
            if not order or not (_begins(order[0], stage, stages) or order[0] in arriving[stage]):
                continue
            action = order.popleft()
            events[stage].append(action)
            neighbor = stage + 1 if isinstance(action, Forward) else stage - 1
            if 0 <= neighbor < stages and not isinstance(action, BackwardWeight):
                events[neighbor].append(Receive(action))
                arriving[neighbor].add(action)
    return events


def _begins(action: Action, stage: int, stages: int) -> bool:
    """Whether it needs nothing of a neighbor: the first forward, the last backward, and weights."""
    if isinstance(action, BackwardWeight):
        return True
    return stage == (0 if isinstance(action, Forward) else stages - 1)


@dataclass(frozen=True)
class Place:
    """A stage in its line, and how far the one before it runs ahead of its own backwards."""

    stage: int
    stages: int
    lead_before: int


def most_held(passage: Passage, events: Sequence[Event], place: Place) -> int:
    """Elements of one sample that a stage holds at most.

    A gradient that was sent back is held until a forward proves that it has arrived: the stage
    before could not have sent that one otherwise.
    """
    back = passage.came_in if place.stage > 0 else 0
    onward = passage.goes_out if place.stage < place.stages - 1 else 0
    held = moving = most = 0
    sent: deque[int] = deque()
    for event in _joined(events):
        match event:
            case Receive(made_by):
                moving += back if isinstance(made_by, Forward) else onward
            case Forward(micro):
                moving -= back
                most = max(most, held + moving + passage.forward)
                held += passage.between
                while sent and sent[0] <= micro - place.lead_before:
                    moving -= back
                    sent.popleft()
            case Backward(micro):
                moving -= onward
                held -= passage.between
                most = max(most, held + moving + passage.backward)
                moving += back
                sent.append(micro)
            case BackwardInput(micro):  # nothing is freed: all of it waits for the other half
                moving -= onward
                held += passage.answers
                most = max(most, held + moving + passage.backward - passage.between)
                moving += back
                sent.append(micro)
            case BackwardWeight():
                held -= passage.between + passage.answers
    return most


def _joined(events: Sequence[Event]) -> list[Event]:
    """Two halves that stand together are one backward pass, and run as one."""
    joined: list[Event] = []
    for event in events:
        before = joined[-1] if joined else None
        if isinstance(event, BackwardWeight) and before == BackwardInput(event.micro):
            joined[-1] = Backward(event.micro)
        else:
            joined.append(event)
    return joined
