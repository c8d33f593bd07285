"""A process that holds a lifeline ends when the other end does."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
import os, signal, sys, time
from convoy.launch import lifeline

print("ready", flush=True)
{does}
print("holding", flush=True)
time.sleep(60)
"""
HOLDS = "lifeline.hold(int(sys.argv[1]))"
WATCHES = "lifeline._watch(int(sys.argv[1]))"


def holder(does: str, reading: int) -> subprocess.Popen[str]:
    """A process that runs these lines."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(does=does), str(reading)],
        pass_fds=[reading],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(reading)
    return process


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ending(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(timeout=10)
    finally:
        process.kill()
        process.communicate()


def test_it_ends_as_soon_as_the_line_is_cut() -> None:
    reading, writing = os.pipe()
    process = holder(HOLDS, reading)
    before = [said(process), said(process)]
    alive = process.poll() is None
    os.close(writing)

    assert (before, alive) == (["ready", "holding"], True)
    assert ending(process) == -signal.SIGKILL


def test_even_a_stopped_process_ends() -> None:
    reading, writing = os.pipe()
    process = holder(HOLDS, reading)
    said(process), said(process)
    process.send_signal(signal.SIGSTOP)
    os.close(writing)

    assert ending(process) == -signal.SIGKILL


def test_a_line_that_was_cut_before_ends_it_at_once() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    process = holder(HOLDS, reading)

    assert said(process) == "ready"
    assert ending(process) == -signal.SIGKILL


def test_without_the_kernels_help_a_thread_watches() -> None:
    reading, writing = os.pipe()
    process = holder(WATCHES, reading)
    before, alive = said(process), process.poll() is None
    os.close(writing)

    assert (before, alive) == ("ready", True)
    assert ending(process) == -signal.SIGKILL
