"""Observers get every event in order, and cannot stop a run."""

import pytest

from convoy.events import Ended, Event, Noticed, Observers, Updated

FIRST, SECOND = Updated(1, 0.5), Updated(2, 0.5)


def test_every_observer_gets_every_event_in_order() -> None:
    seen = list[tuple[str, Event]]()
    observers = Observers(
        [lambda event: seen.append(("log", event)), lambda event: seen.append(("screen", event))]
    )
    observers.notify(FIRST)
    observers.notify(SECOND)

    assert seen == [("log", FIRST), ("screen", FIRST), ("log", SECOND), ("screen", SECOND)]


def test_an_event_without_observers_is_not_an_error() -> None:
    Observers().notify(Ended(3, "done"))


def test_a_failing_observer_is_reported_once_and_removed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen, calls = list[Event](), list[int]()

    def fail(event: Event) -> None:
        calls.append(event.update)
        raise RuntimeError("tracker is offline")

    observers = Observers([fail, seen.append])
    observers.notify(FIRST)
    observers.notify(SECOND)

    assert calls == [1]
    assert [event for event in seen if not isinstance(event, Noticed)] == [FIRST, SECOND]
    (notice,) = (event for event in seen if isinstance(event, Noticed))
    assert (notice.kind, notice.update) == ("observer_failed", 1)
    assert "tracker is offline" in notice.text
    assert capsys.readouterr().err.count("tracker is offline") == 1


def test_a_failing_method_is_reported_by_the_name_of_its_class(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Tracker:
        def write(self, event: Event) -> None:
            raise RuntimeError(f"no room for update {event.update}")

    Observers([Tracker().write]).notify(FIRST)

    assert "observer Tracker failed" in capsys.readouterr().err


def test_an_observer_that_fails_in_its_own_notice_is_removed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Event) -> None:
        raise ValueError("no more")

    seen = list[Event]()
    observers = Observers([fail, fail, seen.append])
    observers.notify(FIRST)
    observers.notify(SECOND)

    assert [event for event in seen if isinstance(event, Updated)] == [FIRST, SECOND]
    assert capsys.readouterr().err.count("failed") <= 2
