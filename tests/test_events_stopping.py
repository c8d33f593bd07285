"""A wish to stop is remembered, and only the first."""

import signal

import pytest

from convoy.events import StopRequest


def test_no_stop_is_requested_at_first() -> None:
    assert StopRequest().reason is None


def test_the_first_reason_stays() -> None:
    stop = StopRequest()
    stop.request("preempted")
    stop.request("interrupted")

    assert stop.reason == "preempted"


@pytest.mark.parametrize(
    ("reason", "urgent"), [(None, False), ("limit", False), ("preempted", True)]
)
def test_only_who_waits_makes_the_end_urgent(reason: str | None, urgent: bool) -> None:
    stop = StopRequest()
    if reason is not None:
        stop.request(reason)

    assert stop.is_urgent is urgent


def test_a_stop_request_can_come_from_a_signal() -> None:
    stop = StopRequest()
    before = signal.signal(signal.SIGUSR1, lambda *_: stop.request("preempted"))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)

    assert stop.reason == "preempted"


def test_runs_do_not_share_their_stop_requests() -> None:
    StopRequest().request("limit")

    assert StopRequest().reason is None
