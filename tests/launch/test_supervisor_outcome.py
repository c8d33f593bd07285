"""The cause of a failure is distinguished from its consequences and keeps its type."""

import pytest

from convoy.errors import ConfigError, ConvoyError, DataError, HangError, WorkerLostError
from convoy.launch.processes import WorkerRank
from convoy.launch.supervisor import LaunchResult, WorkerFailure, causes_first
from convoy.launch.worker import WorkerError

FIRST, SECOND = WorkerRank(rank=0, replica=0, stage=0), WorkerRank(rank=2, replica=1, stage=0)
CONNECTION_CLOSED = (
    "[/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:209."
)
TIMED_OUT = "[/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv"


def worker_error(
    text: str, kind: str = "RuntimeError", code: int = 1, time: float = 1.0
) -> WorkerError:
    return WorkerError(kind, text, f"Traceback:\n{kind}: {text}\n", code, time)


def launch_result(*failures: WorkerFailure) -> LaunchResult:
    sorted_failures = causes_first(failures)
    return LaunchResult(sorted_failures[0].code, sorted_failures)


def test_a_worker_is_named_by_replica_stage_and_rank() -> None:
    assert str(SECOND) == "replica 1, stage 0 (rank 2)"
    assert (FIRST.prefix, SECOND.prefix) == ("", "[replica 1, stage 0] ")


def test_a_killed_worker_is_the_cause_of_closed_connections() -> None:
    lost = WorkerFailure.of(FIRST, worker_error(CONNECTION_CLOSED, time=1.0))
    killed = WorkerFailure(SECOND, "was killed by SIGKILL", 7, time=1.2)
    error = launch_result(lost, killed).error()

    assert isinstance(error, WorkerLostError)
    assert str(error).startswith("replica 1, stage 0 (rank 2) was killed by SIGKILL")
    assert "`convoy resume`" in str(error)


def test_the_earlier_of_two_causes_comes_first() -> None:
    late = WorkerFailure.of(FIRST, worker_error("late", time=2.0))
    early = WorkerFailure.of(SECOND, worker_error("early", time=1.0))

    assert launch_result(late, early).cause == early


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (CONNECTION_CLOSED, "RuntimeError"),
        ("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer.", "RuntimeError"),
        ("gone", "DistNetworkError"),
    ],
)
def test_a_closed_connection_without_a_cause_is_a_lost_worker(text: str, kind: str) -> None:
    failure = WorkerFailure.of(FIRST, worker_error(text, kind))

    assert failure.is_consequence
    assert isinstance(launch_result(failure).error(), WorkerLostError)


def test_a_timeout_without_a_cause_is_a_hang() -> None:
    failure = WorkerFailure.of(FIRST, worker_error(TIMED_OUT))

    assert failure.is_consequence
    assert isinstance(launch_result(failure).error(), HangError)


def test_a_convoy_error_keeps_its_type_and_text() -> None:
    failure = WorkerFailure.of(SECOND, worker_error("17 records are damaged", "DataError", code=3))
    error = launch_result(failure).error()

    assert type(error) is DataError
    assert str(error) == "17 records are damaged"


def test_a_connection_error_that_is_not_from_torch_is_a_cause() -> None:
    failure = WorkerFailure.of(
        FIRST, worker_error("the data server closed: Broken pipe", "DataError", code=3)
    )

    assert not failure.is_consequence


def test_an_unexpected_error_is_reported_with_its_traceback_and_consequences() -> None:
    unexpected = WorkerFailure.of(SECOND, worker_error("not in order", "ValueError", time=1.0))
    lost = WorkerFailure.of(FIRST, worker_error(CONNECTION_CLOSED, time=0.9))
    error = launch_result(lost, unexpected).error()

    assert type(error) is ConvoyError
    assert str(error).splitlines() == [
        "replica 1, stage 0 (rank 2) failed: ValueError: not in order",
        "Traceback:",
        "ValueError: not in order",
        "caused by this failure: replica 0, stage 0 (rank 0) failed: RuntimeError: "
        f"{CONNECTION_CLOSED}",
    ]


def test_an_exit_code_without_a_message_raises_its_error() -> None:
    error = launch_result(WorkerFailure(SECOND, "ended with code 2", 2, time=1.0)).error()

    assert isinstance(error, ConfigError)


def test_a_normal_exit_code_is_not_an_error() -> None:
    assert LaunchResult(75).error() is None
    assert LaunchResult(75).describe() == []
