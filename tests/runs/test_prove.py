"""`convoy prove`: runs in several layouts, and the comparison of their weights.

tests/parity/test_prove_evidence.py runs every layout.
"""

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.run_convoy import ENDLESS, Process, convoy, convoy_process, wait_until

from convoy.cli import prove
from convoy.planning.topology import Layout

pytestmark = pytest.mark.processes

FEW = ("--quick", "--max-processes=2", "--updates=2", "--gradient-accumulation=2")


def prove_only(
    monkeypatch: pytest.MonkeyPatch,
    layouts: list[Layout],
    pairs: Sequence[tuple[Layout, Layout]] = (),
) -> None:
    """Train in these layouts, and resume from the first layout of each pair in the second."""
    monkeypatch.setattr(prove, "all_layouts", lambda *_: layouts)
    monkeypatch.setattr(prove, "resume_pairs", lambda _: list(pairs))


def assert_weights_are_equal() -> None:
    result = convoy("prove", *FEW, "--json")
    proof = json.loads(result.out)
    exact = [layout for layout in proof["layouts"] if layout["exact"]]

    assert (result.code, result.err) == (0, "")
    assert proof["equal"] is True
    assert len({layout["weights_sha256"] for layout in exact}) == 1
    assert {(layout["stages"], layout["replicas"]) for layout in exact} == {(1, 1), (1, 2), (2, 1)}
    assert any(layout["resumed_from"] for layout in exact)
    assert all(len(layout["peak_bytes"]) == layout["stages"] for layout in exact)


def test_stages_and_replicas_and_a_resumed_run_have_the_same_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages, replicas = Layout(stages=2), Layout(replicas=2, sharding=True)
    fast = Layout(replicas=2, reduction="fast")
    prove_only(monkeypatch, [Layout(), stages, replicas, fast], [(Layout(), replicas)])

    assert_weights_are_equal()


@pytest.mark.evidence
def test_all_layouts_of_two_processes_have_the_same_weights() -> None:
    assert_weights_are_equal()


def test_replicas_that_differ_end_the_proof(tmp_path: Path) -> None:
    words = ("prove", *FEW)
    result = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "flip@1:1"})

    assert result.code == 5
    assert "after update 2 the weights differ between replicas" in result.err
    assert "replica 1 (rank 1): " in result.err and "replica 0 (rank 0): " in result.err


def test_the_result_is_printed_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    prove_only(monkeypatch, [Layout(), Layout(recompute=True, offload=True, workers=2)])
    result = convoy("prove", *FEW)
    lines = result.out.splitlines()

    assert lines[0].startswith("replicas × stages ")
    assert lines[1].startswith("1 × 1 ")
    assert "runs with exact reduction have bit-identical weights" in lines[-1]


@pytest.mark.parametrize(
    ("signal_number", "code"),
    [
        pytest.param(signal.SIGTERM, 75, marks=pytest.mark.evidence),  # see the next test
        (signal.SIGINT, 130),
    ],
)
def test_a_stopped_proof_proves_nothing(
    tmp_path_factory: pytest.TempPathFactory, signal_number: int, code: int
) -> None:
    """The first run never ends, so it is always running when the signal arrives."""
    folder = tmp_path_factory.mktemp(
        "p"
    )  # a short path, because it contains the sockets of the workers
    process = Process(["prove", *FEW, ENDLESS], folder, env={"TMPDIR": str(folder)})
    wait_until(lambda: [*folder.glob("convoy-prove-*/1/checkpoints/update-*")])
    process.send(signal_number)
    result = process.wait()

    assert result.code == code
    assert "stopped after 0 runs; the result is incomplete" in result.err
    assert "exact reduction" not in result.out


@pytest.mark.parametrize(
    ("fault", "code"),
    [("term@1:1", 75), pytest.param("int@1:1", 130, marks=pytest.mark.evidence)],
)
def test_layouts_before_a_stop_do_not_count_as_proof(tmp_path: Path, fault: str, code: int) -> None:
    """The third layout is the first with two processes."""
    result = convoy_process("prove", *FEW, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": fault})

    assert result.code == code
    assert "stopped after 2 runs; the result is incomplete" in result.err
    assert "exact reduction" not in result.out


@pytest.mark.parametrize(
    "words",
    [("--max-processes=0",), ("--updates=0",), ("--model=resnet7",), ("--output=x",)],
)
def test_a_wrong_option_is_refused(words: tuple[str, ...]) -> None:
    result = convoy("prove", "--quick", *words)

    assert result.code == 2
    assert "Traceback" not in result.err


def test_a_layout_with_different_weights_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault changes the second update of the last stage, whose weights exist only once."""
    stages = Layout(stages=2)
    prove_only(monkeypatch, [Layout(), stages], [(stages, Layout())])
    monkeypatch.setenv("CONVOY_TEST_FAULTS", "flip@1:1")
    result = convoy("prove", *FEW)

    assert result.code == 5
    assert "no: differs by" in result.out
    assert "2 of 3 runs with exact reduction differ from the first" in result.out
