"""Arguments, environment and output of workers."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.launch.processes import LineSplitter
from convoy.launch.supervisor import run_workers
from convoy.machine import available_cores, partition_cores
from convoy.planning.topology import TopologyPlan


def topology(replicas: int, stages: int) -> TopologyPlan:
    return TopologyPlan(hosts=1, instances=1, replicas=replicas, stages=stages)


@pytest.mark.processes
def test_a_worker_gets_its_rank_payload_threads_and_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_workers(topology(2, 1), "support.launch_targets:end", {"codes": [0, 0]}, threads=1)
    monkeypatch.setenv("SET_JUST_NOW", "yes")  # the forkserver has already started
    payload = {"folder": str(tmp_path), "text": "naïve 🏖"}
    outcome = run_workers(topology(2, 1), "support.launch_targets:describe", payload, threads=3)
    workers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    shares = partition_cores(available_cores(), 2)

    assert outcome.code == 0
    assert [worker["world"] for worker in workers] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert [worker["text"] for worker in workers] == ["naïve 🏖"] * 2
    assert [(worker["threads"], worker["variable"]) for worker in workers] == [(3, "3")] * 2
    assert [worker["later"] for worker in workers] == ["yes"] * 2
    assert [tuple(worker["cores"]) for worker in workers] == list(shares)
    assert all(worker["leads_its_session"] for worker in workers)


@pytest.mark.processes
def test_rank_0_prints_without_and_the_other_ranks_with_a_prefix(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_workers(topology(2, 2), "support.launch_targets:print_lines", {"last": "no end"}, threads=1)
    printed = capfd.readouterr()
    out = printed.out.splitlines()
    lines_of_rank = {
        rank: [line.removeprefix(name) for line in out if line.startswith(name)]
        for rank, name in [(1, "[replica 0, stage 1] "), (3, "[replica 1, stage 1] ")]
    }

    assert {"out 0", "raw"} <= set(out)
    assert lines_of_rank == {rank: [f"out {rank}", "raw", "no end"] for rank in (1, 3)}
    assert "err 0" in printed.err.splitlines()
    assert "[replica 1, stage 0] err 2" in printed.err.splitlines()


@pytest.mark.processes
def test_a_very_long_line_is_printed_in_parts(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run_workers(
        topology(2, 1), "support.launch_targets:print_lines", {"last": "x" * 200_000}, threads=1
    )
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[")]

    assert outcome.error() is None
    assert sum(line.count("x") for line in lines) == 200_000
    assert max(map(len, lines)) < 70_000


@pytest.mark.processes
def test_output_reaches_a_stream_that_is_not_a_file() -> None:
    with redirect_stdout(io.StringIO()) as out:
        run_workers(topology(2, 1), "support.launch_targets:print_lines", {"last": ""}, threads=1)

    assert {"out 0", "[replica 1, stage 0] out 1"} <= set(out.getvalue().splitlines())


@pytest.mark.processes
def test_the_supervisor_closes_all_its_descriptors() -> None:
    run_workers(topology(2, 1), "support.launch_targets:end", {"codes": [0, 0]}, threads=1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    run_workers(topology(2, 1), "support.launch_targets:end", {"codes": [0, 0]}, threads=1)

    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_line_is_returned_when_it_is_complete() -> None:
    lines = LineSplitter(100)
    first, second = lines.feed(b"one\ntw"), lines.feed(b"o\n")

    assert (first, second, lines.flush()) == ([b"one"], [b"two"], [])


def test_flush_returns_an_unfinished_line_once() -> None:
    lines = LineSplitter(100)
    lines.feed(b"one\ntwo")

    assert (lines.flush(), lines.flush()) == ([b"two"], [])


def test_a_line_beyond_the_limit_is_split() -> None:
    lines = LineSplitter(4)

    assert lines.feed(b"123456789") == [b"1234", b"5678"]
    assert lines.feed(b"\n") == [b"9"]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9)))
def test_splitting_does_not_change_the_content(pieces: list[bytes]) -> None:
    lines = LineSplitter(1000)
    split = [line for piece in pieces for line in lines.feed(piece)] + lines.flush()
    joined = b"".join(pieces)

    assert split == (joined[:-1] if joined.endswith(b"\n") else joined).split(b"\n") or not joined
