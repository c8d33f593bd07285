"""The cause of a failure is distinguished from its consequences and keeps its type."""

import pytest

from convoy.errors import ConfigError, ConvoyError, DataError, HangError, WorkerLostError
from convoy.launch.processes import WorkerRank
from convoy.launch.supervisor import LaunchResult, WorkerFailure, causes_first
from convoy.launch.worker import WorkerError

FIRST, SECOND = WorkerRank(rank=0, replica=0, stage=0), WorkerRank(rank=2, replica=1, stage=0)
CLOSED = "[/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:209."
LATE = "[/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv"


def failed(text: str, kind: str = "RuntimeError", code: int = 1, time: float = 1.0) -> WorkerError:
    return WorkerError(kind, text, f"Traceback:\n{kind}: {text}\n", code, time)


def outcome(*failures: WorkerFailure) -> LaunchResult:
    ordered = causes_first(failures)
    return LaunchResult(ordered[0].code, ordered)


def test_a_worker_is_named_by_replica_stage_and_rank() -> None:
    assert str(SECOND) == "replica 1, stage 0 (rank 2)"
    assert (FIRST.prefix, SECOND.prefix) == ("", "[replica 1, stage 0] ")


def test_a_killed_worker_comes_before_workers_that_lost_it() -> None:
    lost = WorkerFailure.of(FIRST, failed(CLOSED, time=1.0))
    killed = WorkerFailure(SECOND, "was killed by SIGKILL", 7, time=1.2)
    error = outcome(lost, killed).error()

    assert isinstance(error, WorkerLostError)
    assert str(error) == (
        "replica 1, stage 0 (rank 2) was killed by SIGKILL; the other workers were stopped; "
        "`convoy resume` continues from the last checkpoint, if there is one"
    )


def test_the_earlier_of_two_causes_comes_first() -> None:
    late = WorkerFailure.of(FIRST, failed("late", time=2.0))
    early = WorkerFailure.of(SECOND, failed("early", time=1.0))

    assert outcome(late, early).cause == early


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (CLOSED, "RuntimeError"),
        ("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer.", "RuntimeError"),
        ("gone", "DistNetworkError"),
    ],
)
def test_a_failure_with_only_a_lost_peer_is_a_lost_worker(text: str, kind: str) -> None:
    failure = WorkerFailure.of(FIRST, failed(text, kind))

    assert failure.is_consequence
    assert isinstance(outcome(failure).error(), WorkerLostError)


def test_a_timeout_of_a_peer_is_a_hang() -> None:
    failure = WorkerFailure.of(FIRST, failed(LATE))

    assert failure.is_consequence
    assert isinstance(outcome(failure).error(), HangError)


def test_a_convoy_error_keeps_its_type_and_text() -> None:
    failure = WorkerFailure.of(SECOND, failed("17 records are damaged", "DataError", code=3))
    error = outcome(failure).error()

    assert type(error) is DataError
    assert str(error) == "17 records are damaged"


def test_a_connection_error_that_is_not_from_torch_is_a_cause() -> None:
    failure = WorkerFailure.of(
        FIRST, failed("the data server closed: Broken pipe", "DataError", code=3)
    )

    assert not failure.is_consequence


def test_a_bug_shows_its_traceback_before_the_consequences() -> None:
    bug = WorkerFailure.of(SECOND, failed("not in order", "ValueError", time=1.0))
    lost = WorkerFailure.of(FIRST, failed(CLOSED, time=0.9))
    error = outcome(lost, bug).error()

    assert type(error) is ConvoyError
    assert str(error).splitlines() == [
        "replica 1, stage 0 (rank 2) failed: ValueError: not in order",
        "Traceback:",
        "ValueError: not in order",
        f"consequence: replica 0, stage 0 (rank 0) failed: RuntimeError: {CLOSED}",
    ]


def test_an_exit_code_without_a_message_raises_its_error() -> None:
    error = outcome(WorkerFailure(SECOND, "ended with code 2", 2, time=1.0)).error()

    assert isinstance(error, ConfigError)


def test_a_normal_exit_code_is_not_an_error() -> None:
    assert LaunchResult(75).error() is None
    assert LaunchResult(75).describe() == []
