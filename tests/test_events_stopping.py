"""Stop requests: the first reason wins."""

import signal

import pytest

from convoy.events import StopRequest


def test_no_stop_is_requested_at_first() -> None:
    assert StopRequest().reason is None


def test_the_first_reason_wins() -> None:
    stop = StopRequest()
    stop.request("preempted")
    stop.request("interrupted")

    assert stop.reason == "preempted"


@pytest.mark.parametrize(
    ("reason", "urgent"), [(None, False), ("limit", False), ("preempted", True)]
)
def test_a_limit_is_not_urgent_but_a_preemption_is(reason: str | None, urgent: bool) -> None:
    stop = StopRequest()
    if reason is not None:
        stop.request(reason)

    assert stop.is_urgent is urgent


def test_a_signal_handler_can_request_a_stop() -> None:
    stop = StopRequest()
    before = signal.signal(signal.SIGUSR1, lambda *_: stop.request("preempted"))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)

    assert stop.reason == "preempted"


def test_each_run_has_a_separate_stop_request() -> None:
    StopRequest().request("limit")

    assert StopRequest().reason is None
