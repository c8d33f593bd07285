"""Every listener hears every event, in order."""

import pytest

from convoy.engine.outfeed import Outfeed
from convoy.events import Ended, Event, Updated, Validated

FIRST, SECOND = Updated(1, 0.5), Updated(2, 0.5)


def test_every_subscriber_hears_every_event_in_the_order_they_came() -> None:
    outfeed, heard = Outfeed(), list[tuple[str, Event]]()
    outfeed.subscribe(lambda event: heard.append(("log", event)))
    outfeed.subscribe(lambda event: heard.append(("store", event)))
    outfeed.put(FIRST)
    outfeed.put(SECOND)

    assert heard == [("log", FIRST), ("store", FIRST), ("log", SECOND), ("store", SECOND)]


def test_a_late_subscriber_hears_only_what_comes_after() -> None:
    outfeed, heard = Outfeed(), list[Event]()
    outfeed.put(FIRST)
    outfeed.subscribe(heard.append)
    outfeed.put(SECOND)

    assert heard == [SECOND]


def test_an_event_nobody_hears_is_no_error() -> None:
    Outfeed().put(Ended(3, "done"))


def test_a_subscriber_may_answer_with_an_event_of_its_own() -> None:
    outfeed, heard = Outfeed(), list[Event]()
    score = Validated(1, 0.1, 0.5, 0.9, 1.0, 10, 0.1, 100.0)
    outfeed.subscribe(heard.append)
    outfeed.subscribe(lambda event: outfeed.put(score) if event == FIRST else None)
    outfeed.put(FIRST)

    assert heard == [FIRST, score]


def test_the_error_of_a_subscriber_reaches_the_loop() -> None:
    outfeed, heard = Outfeed(), list[Event]()

    def refuse(event: Event) -> None:
        raise OSError(f"no room for {event.update}")

    outfeed.subscribe(refuse)
    outfeed.subscribe(heard.append)
    with pytest.raises(OSError, match="no room for 1"):
        outfeed.put(FIRST)

    assert heard == []
