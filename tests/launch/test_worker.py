"""Messages of a worker, and its exit when the pipe from the supervisor is closed."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.launch.worker import (
    MAX_MESSAGE_BYTES,
    WorkerEnded,
    WorkerError,
    WorkerMessage,
    decode_message,
    encode_message,
)

ERROR = WorkerError(
    kind="DataError", text="no\nrecords", traceback="Traceback …", code=3, time=12.5
)


@pytest.mark.parametrize("message", [WorkerEnded(75), ERROR], ids=type)
def test_a_message_is_one_line_that_can_be_read_back(message: WorkerMessage) -> None:
    line = encode_message(message)

    assert decode_message(line) == message
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@pytest.mark.parametrize("character", ["\0", "a", "é", "🏖", "\ud800"])
def test_long_texts_are_truncated_to_fit_the_message(character: str) -> None:
    long_error = WorkerError(
        kind=character * 10**5, text=character * 10**6, traceback="x", code=1, time=0.5
    )
    line = encode_message(long_error)
    decoded = decode_message(line)

    assert len(line) <= MAX_MESSAGE_BYTES
    assert isinstance(decoded, WorkerError)
    assert decoded.code == 1


def test_a_long_traceback_is_truncated_at_the_start() -> None:
    decoded = decode_message(
        encode_message(WorkerError("E", "t", "begin" + "." * 10**6 + "end", 1, 0.0))
    )

    assert isinstance(decoded, WorkerError)
    assert decoded.traceback.endswith(".end")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"code": "7"}',
        b'{"code": 0.5}',
        b'{"code": 7, "pid": 7}',
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"kind": "E", "text": "t", "code": 1, "time": 0.0}).encode(),
    ],
    ids=range(11),
)
def test_an_invalid_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_message(line)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_only_value_errors(line: bytes) -> None:
    with suppress(ValueError):
        decode_message(line)


SCRIPT = """
import os, signal, sys, time
from convoy.launch import worker

print("ready", flush=True)
{statement}
print("waiting", flush=True)
time.sleep(600)
"""
EXIT_WITH_PIPE = "worker.exit_with_pipe(int(sys.argv[1]))"
PORTABLE_WATCHER = "worker._exit_when_closed(int(sys.argv[1]), None)"


def start_process(statement: str, read_end: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(statement=statement), str(read_end)],
        pass_fds=[read_end],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(read_end)
    return process


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def exit_status(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(timeout=150)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.processes
def test_a_process_ends_as_soon_as_the_pipe_is_closed() -> None:
    read_end, write_end = os.pipe()
    process = start_process(EXIT_WITH_PIPE, read_end)
    lines = [read_line(process), read_line(process)]
    alive = process.poll() is None
    os.close(write_end)

    # The exit status is checked first, because it ends the process in any case.
    assert exit_status(process) == -signal.SIGKILL
    assert (lines, alive) == (["ready", "waiting"], True)


@pytest.mark.processes
def test_a_stopped_process_ends_when_the_pipe_is_closed() -> None:
    read_end, write_end = os.pipe()
    process = start_process(EXIT_WITH_PIPE, read_end)
    read_line(process), read_line(process)
    process.send_signal(signal.SIGSTOP)
    os.close(write_end)

    assert exit_status(process) == -signal.SIGKILL


@pytest.mark.processes
def test_a_process_ends_if_the_pipe_is_already_closed() -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    process = start_process(EXIT_WITH_PIPE, read_end)

    assert read_line(process) == "ready"
    assert exit_status(process) == -signal.SIGKILL


@pytest.mark.processes
def test_the_portable_watcher_ends_the_process() -> None:
    read_end, write_end = os.pipe()
    process = start_process(PORTABLE_WATCHER, read_end)
    line, alive = read_line(process), process.poll() is None
    os.close(write_end)

    # The exit status is checked first, because it ends the process in any case.
    assert exit_status(process) == -signal.SIGKILL
    assert (line, alive) == ("ready", True)
