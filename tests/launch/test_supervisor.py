"""All workers end after an exit, a failure, a signal, or the loss of the supervisor."""

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


def run_with_failure(failure: str, rank: int = 2) -> LaunchResult:
    """Run workers of which one fails, and wait long enough to find the cause."""
    return run(2, 2, "fail", LaunchOptions(peer_exit_seconds=PATIENCE), failure=failure, rank=rank)


def wait_for(folder: Path, name: str) -> list[str]:
    """Wait until both workers have written a file of this name, and return the contents."""
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
            time.sleep(0.25)  # longer than the polling interval of the supervisor
        (folder / "update-is-done").touch()

    sender = threading.Thread(target=send)
    sender.start()
    result = run(2, 1, "sleep", limits, folder=str(folder), signals=signals)
    sender.join()
    return result


class SupervisorProcess:
    """A supervisor in its own process, which tests can kill, and the processes it started."""

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
                "TMPDIR": str(folder),  # a killed process does not remove its files
            },
        )
        self.workers = wait_for_workers(folder)
        self.descendants = psutil.Process(self.process.pid).children(recursive=True)

    def wait(self) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=PATIENCE)
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result


def wait_for_exit(processes: list[psutil.Process]) -> None:
    """Wait for less time than the workers sleep; a zombie has exited."""
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
    result = run(2, 1, "end", codes=[0, 75])

    assert result.code == 1
    assert (
        "(rank 0) exited with code 0, but replica 1, stage 0 (rank 1) exited with code 75"
        in str(result.error())
    )


def test_a_convoy_error_keeps_its_type_code_and_text() -> None:
    result = run_with_failure("data error")

    assert result.code == 3
    assert type(result.error()) is DataError
    assert str(result.error()) == "17 of 20 records are damaged"
    assert result.cause is not None
    assert (result.cause.rank.replica, result.cause.rank.stage) == (1, 0)
    assert all(failure.is_consequence for failure in result.failures[1:])


def test_an_unexpected_error_is_reported_with_its_traceback() -> None:
    error = run_with_failure("bug").error()
    lines = str(error).splitlines()

    assert type(error) is ConvoyError
    assert lines[0] == "replica 1, stage 0 (rank 2) failed: ValueError: not in order"
    assert lines[1].startswith("Traceback")
    assert any("launch_targets.py" in line for line in lines)
    assert all("caused by this failure: " not in line for line in lines[:5])


@pytest.mark.parametrize("rank", range(4))
def test_a_killed_worker_is_named_while_the_others_wait_for_it(rank: int) -> None:
    result = run_with_failure("kill", rank)
    error = result.error()

    assert isinstance(error, WorkerLostError)
    worker = f"replica {rank // 2}, stage {rank % 2} (rank {rank})"
    assert str(error).startswith(f"{worker} was killed by SIGKILL; the other workers were stopped")
    assert result.code == 7
    assert all(failure.is_consequence for failure in result.failures[1:])


def test_a_worker_that_exits_without_an_error_message_is_reported() -> None:
    assert "(rank 2) exited with code 3 and printed no error; " in str(
        run_with_failure("os exit").error()
    )


def test_the_exit_code_of_a_failed_worker_is_returned() -> None:
    assert run_with_failure("exit").code == 4


def test_the_cause_is_found_even_if_it_is_reported_last() -> None:
    assert str(run_with_failure("close first").error()) == "reported after the others failed"


def test_a_target_that_does_not_exist_is_reported() -> None:
    error = run(1, 2, "missing_target").error()

    assert (
        "AttributeError: module 'support.launch_targets' has no attribute 'missing_target'"
        in str(error)
    )


def test_too_many_workers_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^100 workers .*\b64\b.*--replicas.*--shards"):
        run(100, 1, "sleep", folder=str(tmp_path), signals="default")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_forwarded_once_and_the_workers_finish(tmp_path: Path, number: int) -> None:
    result = run_with_signals(tmp_path, "obey", LaunchOptions(), number)

    assert result == LaunchResult(75)  # the exit code of both workers
    assert received_signals(tmp_path) == [[signal.Signals(number).name]] * 2


def test_a_repeated_signal_is_not_forwarded_again(tmp_path: Path) -> None:
    run_with_signals(tmp_path, "obey", LaunchOptions(), signal.SIGTERM, signal.SIGTERM)

    assert received_signals(tmp_path) == [["SIGTERM"]] * 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_that_workers_do_not_handle_ends_the_run(
    tmp_path: Path, number: int, code: int
) -> None:
    assert run_with_signals(tmp_path, "default", LaunchOptions(), number) == LaunchResult(code)


def test_a_worker_that_ignores_signals_is_killed_after_the_timeout(tmp_path: Path) -> None:
    result = run_with_signals(tmp_path, "ignore", LaunchOptions(save_seconds=0.5), signal.SIGTERM)

    assert result.code == 8
    assert result.describe()[0] == (
        "replica 0, stage 0 (rank 0) did not exit within 0.5 s of SIGTERM and was killed"
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
    result = run(2, 1, "sleep", limits, folder=str(tmp_path), signals="ignore")
    killer.join()

    assert result.describe() == ["replica 1, stage 0 (rank 1) was killed by SIGKILL"]


def test_a_second_interrupt_kills_all_workers(tmp_path: Path) -> None:
    supervisor = SupervisorProcess(tmp_path, "child")
    supervisor.process.send_signal(signal.SIGINT)
    wait_for(tmp_path, "received")
    supervisor.process.send_signal(signal.SIGINT)

    assert supervisor.wait() == {"code": 130, "lines": []}
    assert received_signals(tmp_path) == [["SIGINT"]] * 2
    wait_for_exit(supervisor.descendants)


def test_a_killed_supervisor_leaves_no_process_behind(tmp_path: Path) -> None:
    supervisor = SupervisorProcess(tmp_path, "ignore")
    supervisor.workers[1].suspend()
    supervisor.process.kill()
    supervisor.process.communicate(timeout=PATIENCE)

    assert len(supervisor.descendants) >= 3
    wait_for_exit(supervisor.workers)
    wait_for_exit(supervisor.descendants)


def test_a_killed_forkserver_leaves_no_process_behind(tmp_path: Path) -> None:
    supervisor = SupervisorProcess(tmp_path, "ignore")
    psutil.Process(supervisor.workers[0].ppid()).kill()

    assert supervisor.wait()["code"] == 7
    wait_for_exit(supervisor.workers)
