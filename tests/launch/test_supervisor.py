"""All workers end: after exit codes, failures, kills, signals and a lost supervisor."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.run_convoy import PATIENCE, wait_until

from convoy.errors import ConfigError, ConvoyError, DataError, WorkerLostError
from convoy.launch.supervisor import LaunchOptions, LaunchResult, run_workers
from convoy.launch.worker import FORWARDED_SIGNALS
from convoy.planning.topology import TopologyPlan

pytestmark = pytest.mark.processes
SUPPORT = Path(__file__).parents[1] / "support"
DEFAULT_LIMITS = LaunchOptions()


def run(
    replicas: int, stages: int, target: str, limits: LaunchOptions = DEFAULT_LIMITS, **payload: Any
) -> LaunchResult:
    topology = TopologyPlan(hosts=1, instances=1, replicas=replicas, stages=stages)
    return run_workers(topology, f"support.launch_targets:{target}", payload, 1, limits)


def fail(way: str, rank: int = 2) -> LaunchResult:
    """Run workers of which one fails; its failure counts as the cause whenever it is noticed."""
    return run(2, 2, "fail", LaunchOptions(settle_seconds=PATIENCE), failure=way, rank=rank)


def wait_for(folder: Path, name: str) -> list[str]:
    """Wait until both workers have written their files of this name, and return the texts."""
    files = [folder / f"{name}-{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [file.read_text() for file in files]


def wait_for_workers(folder: Path) -> list[psutil.Process]:
    return [psutil.Process(int(text)) for text in wait_for(folder, "ready")]


def received_signals(folder: Path) -> list[list[str]]:
    return [text.split() for text in wait_for(folder, "received")]


def run_with_signals(
    folder: Path, signals: str, limits: LaunchOptions, *numbers: int
) -> LaunchResult:
    """Send signals to this process, the supervisor of two sleeping workers."""

    def send() -> None:
        wait_for_workers(folder)
        for number in numbers:
            os.kill(os.getpid(), number)
            if signals == "obey":
                wait_for(folder, "received")
            time.sleep(0.25)  # more than the polling interval of the supervisor
        (folder / "update-is-done").touch()

    sender = threading.Thread(target=send)
    sender.start()
    outcome = run(2, 1, "sleep", limits, folder=str(folder), signals=signals)
    sender.join()
    return outcome


class Command:
    """A supervisor that can be killed, and the processes it has started."""

    def __init__(self, folder: Path, signals: str) -> None:
        request = {
            "replicas": 2,
            "stages": 1,
            "target": "support.launch_targets:sleep",
            "payload": {"folder": str(folder), "signals": signals},
            "limits": {"grace_seconds": 0.3},
        }
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "launch_command.py"), json.dumps(request)],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TMPDIR": str(folder),  # a killed process cannot remove its files
            },
        )
        self.workers = wait_for_workers(folder)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=PATIENCE)
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result


def wait_for_exit(processes: list[psutil.Process]) -> None:
    """Wait for less time than they would sleep; a zombie counts as ended."""
    wait_until(lambda: not any(map(is_alive, processes)), seconds=PATIENCE / 4)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("code", [0, 75, 130])
def test_the_exit_code_of_all_workers_is_returned(code: int) -> None:
    assert run(2, 1, "end", codes=[code, code]) == LaunchResult(code)


def test_different_exit_codes_are_an_error() -> None:
    outcome = run(2, 1, "end", codes=[0, 75])

    assert outcome.code == 1
    assert "(rank 0) ended with code 0, but replica 1, stage 0 (rank 1) with 75" in str(
        outcome.error()
    )


def test_a_convoy_error_keeps_its_type_code_and_text() -> None:
    outcome = fail("data error")

    assert outcome.code == 3
    assert type(outcome.error()) is DataError
    assert str(outcome.error()) == "17 of 20 records are damaged"
    assert outcome.cause is not None
    assert (outcome.cause.rank.replica, outcome.cause.rank.stage) == (1, 0)
    assert all(failure.is_consequence for failure in outcome.failures[1:])


def test_a_bug_is_reported_with_its_traceback_before_its_consequences() -> None:
    error = fail("bug").error()
    lines = str(error).splitlines()

    assert type(error) is ConvoyError
    assert lines[0] == "replica 1, stage 0 (rank 2) failed: ValueError: not in order"
    assert lines[1].startswith("Traceback")
    assert any("launch_targets.py" in line for line in lines)
    assert all("consequence: " not in line for line in lines[:5])


@pytest.mark.parametrize("rank", range(4))
def test_a_killed_worker_is_named_while_the_others_wait_for_it(rank: int) -> None:
    outcome = fail("kill", rank)
    error = outcome.error()

    assert isinstance(error, WorkerLostError)
    worker = f"replica {rank // 2}, stage {rank % 2} (rank {rank})"
    assert str(error).startswith(f"{worker} was killed by SIGKILL; the other workers were stopped")
    assert outcome.code == 7
    assert all(failure.is_consequence for failure in outcome.failures[1:])


def test_a_worker_that_exits_without_a_message_is_lost() -> None:
    assert "(rank 2) exited with code 3 and printed no error; " in str(fail("os exit").error())


def test_a_worker_that_exits_with_an_error_code_ends_the_run_with_it() -> None:
    assert fail("exit").code == 4


def test_the_cause_is_found_even_if_the_others_fail_before_it_is_reported() -> None:
    assert str(fail("close first").error()) == "reported after the others failed"


def test_a_target_that_does_not_exist_is_reported() -> None:
    error = run(1, 2, "nothing_of_this_name").error()

    assert (
        "AttributeError: module 'support.launch_targets' has no attribute 'nothing_of_this_name'"
        in str(error)
    )


def test_too_many_workers_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^100 workers .*\b64\b.*--replicas.*--shards"):
        run(100, 1, "sleep", folder=str(tmp_path), signals="default")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_forwarded_once_and_the_workers_finish(tmp_path: Path, number: int) -> None:
    outcome = run_with_signals(tmp_path, "obey", LaunchOptions(), number)

    assert outcome == LaunchResult(75)  # the code that both workers return
    assert received_signals(tmp_path) == [[signal.Signals(number).name]] * 2


def test_a_repeated_signal_is_not_forwarded_again(tmp_path: Path) -> None:
    run_with_signals(tmp_path, "obey", LaunchOptions(), signal.SIGTERM, signal.SIGTERM)

    assert received_signals(tmp_path) == [["SIGTERM"]] * 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_before_workers_handle_it_ends_the_run_with_its_code(
    tmp_path: Path, number: int, code: int
) -> None:
    assert run_with_signals(tmp_path, "default", LaunchOptions(), number) == LaunchResult(code)


def test_a_worker_that_ignores_signals_is_killed_after_the_timeout(tmp_path: Path) -> None:
    outcome = run_with_signals(tmp_path, "ignore", LaunchOptions(save_seconds=0.5), signal.SIGTERM)

    assert outcome.code == 8
    assert outcome.describe()[0] == (
        "replica 0, stage 0 (rank 0) did not end within 0.5 s of SIGTERM and was killed"
    )


def test_the_supervisor_does_not_import_torch() -> None:
    script = "import convoy.launch.supervisor, sys; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_signal_handlers_are_restored_after_a_run() -> None:
    before = [signal.getsignal(number) for number in FORWARDED_SIGNALS]
    run(2, 1, "end", codes=[0, 0])

    assert [signal.getsignal(number) for number in FORWARDED_SIGNALS] == before


def test_workers_that_ignore_signals_are_killed_after_a_failure(tmp_path: Path) -> None:
    killer = threading.Thread(target=lambda: wait_for_workers(tmp_path)[1].kill())
    killer.start()
    limits = LaunchOptions(grace_seconds=0.3)
    outcome = run(2, 1, "sleep", limits, folder=str(tmp_path), signals="ignore")
    killer.join()

    assert outcome.describe() == ["replica 1, stage 0 (rank 1) was killed by SIGKILL"]


def test_a_second_interrupt_kills_all_workers(tmp_path: Path) -> None:
    command = Command(tmp_path, "child")
    command.process.send_signal(signal.SIGINT)
    wait_for(tmp_path, "received")
    command.process.send_signal(signal.SIGINT)

    assert command.end() == {"code": 130, "lines": []}
    assert received_signals(tmp_path) == [["SIGINT"]] * 2
    wait_for_exit(command.family)


def test_a_killed_supervisor_leaves_no_process_behind(tmp_path: Path) -> None:
    command = Command(tmp_path, "ignore")
    command.workers[1].suspend()
    command.process.kill()
    command.process.communicate(timeout=PATIENCE)

    assert len(command.family) >= 3
    wait_for_exit(command.workers)
    wait_for_exit(command.family)


def test_a_killed_forkserver_leaves_no_process_behind(tmp_path: Path) -> None:
    command = Command(tmp_path, "ignore")
    psutil.Process(command.workers[0].ppid()).kill()

    assert command.end()["code"] == 7
    wait_for_exit(command.workers)
