"""convoy launch: a script runs alone, in several processes and under torchrun, unchanged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.run_convoy import PATIENCE, CommandResult, Process, convoy, convoy_process, wait_until

SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"
ALONE = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]


def python(*words: str | Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(word) for word in words]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stderr


def launch(tmp_path: Path, action: str, rank: int = 1) -> CommandResult:
    """Launch two processes, one of which behaves in the given way."""
    words = ("launch", "--replicas=2", SCRIPTS / "joined.py", tmp_path, action, str(rank))
    return convoy_process(*words, scratch=tmp_path)


def launched(tmp_path: Path, *words: str) -> dict[str, str]:
    """What the processes of a launched `two_stages.py` report, by rank."""
    folder = tmp_path / "-".join(words)
    folder.mkdir()
    *options, accumulation = words
    script = SCRIPTS / "two_stages.py"
    ended = convoy_process("launch", *options, script, accumulation, folder, scratch=tmp_path)
    assert ended.code == 0, ended.err
    return reports(folder)


def reports(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in sorted(folder.iterdir())}


@pytest.mark.processes
@pytest.mark.slow
def test_a_script_trains_the_same_weights_however_it_is_started(tmp_path: Path) -> None:
    """Replicas and processes of each in every report; all have the same digest."""
    for name in ("alone", "torchrun"):
        (tmp_path / name).mkdir()
    python(*ALONE, SCRIPTS / "two_stages.py", "8", tmp_path / "alone")
    python(*TORCHRUN, SCRIPTS / "two_stages.py", "8", tmp_path / "torchrun")

    (alone,) = reports(tmp_path / "alone").values()
    digest = alone.split()[0]
    assert alone == f"{digest} 1 1"
    assert reports(tmp_path / "torchrun") == dict.fromkeys("01", f"{digest} 1 2")
    assert launched(tmp_path, "8") == {"0": f"{digest} 1 1"}
    assert launched(tmp_path, "--shards=2", "8") == dict.fromkeys("01", f"{digest} 1 2")
    assert launched(tmp_path, "--replicas=2", "4") == dict.fromkeys("01", f"{digest} 2 1")
    both = launched(tmp_path, "--replicas=2", "--shards=2", "4")
    assert both == dict.fromkeys("0123", f"{digest} 2 2")


@pytest.mark.processes
def test_every_process_of_a_script_reads_the_run_that_it_trains(tmp_path: Path) -> None:
    script, folders = SCRIPTS / "trained.py", [tmp_path / "alone", tmp_path / "launched"]
    for folder in folders:
        folder.mkdir()
    python(*ALONE, script, folders[0])
    ended = convoy_process("launch", "--replicas=2", script, folders[1], scratch=tmp_path)

    assert ended.code == 0, ended.err
    alone = (folders[0] / "alone").read_text()
    assert alone.split()[1:] == ["2", "6"]
    assert [(folders[1] / rank).read_text() for rank in "01"] == [alone] * 2


@pytest.mark.processes
def test_the_processes_of_a_script_are_connected_over_loopback(tmp_path: Path) -> None:
    words = ("launch", "--replicas=2", SCRIPTS / "joined.py", tmp_path, "wait", "0")
    process = Process(list(words), tmp_path)
    files = [tmp_path / f"ready-{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    reported = [file.read_text().split() for file in files]
    workers = [psutil.Process(int(pid)) for pid, *_ in reported]
    addresses = {
        connection.laddr.ip
        for worker in workers
        for connection in worker.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    process.send(signal.SIGTERM)
    ended = process.wait()

    assert [(count, name) for _, count, name in reported] == [("2", "__main__")] * 2
    assert addresses == {"127.0.0.1"}
    assert ended.code == 75
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.processes
def test_no_process_survives_the_launcher(tmp_path: Path) -> None:
    words = ("launch", "--replicas=2", SCRIPTS / "joined.py", tmp_path, "wait", "0")
    process = Process(list(words), tmp_path)
    files = [tmp_path / f"ready-{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    workers = [psutil.Process(int(file.read_text().split()[0])) for file in files]
    process.send(signal.SIGKILL)

    _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
    assert alive == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("action", "code", "facts"),
    [
        ("raise", 1, ["replica 1, stage 0 (rank 1)", "ValueError: not in order", "joined.py"]),
        ("exit", 17, ["replica 1, stage 0 (rank 1)", "17"]),
        ("text", 1, ["the disk is missing"]),
        ("kill", 7, ["replica 1, stage 0 (rank 1)", "SIGKILL"]),
    ],
)
def test_one_failed_process_stops_the_others(
    tmp_path: Path, action: str, code: int, facts: list[str]
) -> None:
    ended = launch(tmp_path, action)

    assert ended.code == code
    assert [fact for fact in facts if fact not in ended.err] == []


@pytest.mark.processes
def test_threads_and_exit_functions_of_a_script_run(tmp_path: Path) -> None:
    assert launch(tmp_path, "thread").code == 0

    names = {path.name for path in tmp_path.iterdir()}
    assert {"thread", "left-0", "left-1"} <= names


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["nothing.py"], "nothing.py does not exist"),
        ([], "SCRIPT"),
        (["--replicas=0", str(SCRIPTS / "joined.py")], "--replicas must be at least 1, got 0"),
        (["--shards", "x", str(SCRIPTS / "joined.py")], "--shards"),
        (["--devices=2", str(SCRIPTS / "joined.py")], "--devices"),
    ],
)
def test_an_invalid_command_is_refused(words: list[str], fact: str) -> None:
    result = convoy("launch", *words)

    assert (result.code, result.out) == (2, "")
    assert fact in result.err


def test_words_after_the_script_are_its_own() -> None:
    """They do not count as options of `convoy launch`."""
    result = convoy("launch", "nothing.py", "--help", "--replicas", "x")

    assert result.code == 2 and "nothing.py does not exist" in result.err
