"""`convoy prove`: real runs under many layouts, and a verdict that can be trusted."""

import json
import signal
from pathlib import Path

import pytest
from support.run_convoy import ENDLESS, Process, convoy, convoy_process, wait_until

from convoy.cli import prove
from convoy.plan.topology import Layout

pytestmark = pytest.mark.processes

FEW = ("--quick", "--most-processes=2", "--updates=2", "--gradient-accumulation=2")


def test_layouts_have_the_same_weights() -> None:
    said = convoy("prove", *FEW, "--json")
    found = json.loads(said.out)
    exact = [one for one in found["layouts"] if one["exact"]]

    assert (said.code, said.err) == (0, "")
    assert found["equal"] is True
    assert len({one["weights_sha256"] for one in exact}) == 1
    assert {(one["stages"], one["replicas"]) for one in exact} == {(1, 1), (1, 2), (2, 1)}
    assert any(one["resumed_from"] for one in exact)
    assert all(len(one["peak_bytes"]) == one["stages"] for one in exact)


def test_replicas_that_differ_end_the_proof(tmp_path: Path) -> None:
    words = ("prove", *FEW)
    said = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": "flip@1:1"})

    assert said.code == 5
    assert "after update 2 the weights differ between replicas" in said.err
    assert "replica 1 (rank 1): " in said.err and "replica 0 (rank 0): " in said.err


def test_a_table_is_printed_for_people() -> None:
    said = convoy("prove", *FEW)
    lines = said.out.splitlines()

    assert lines[0].startswith("layout ")
    assert lines[1].startswith("1 × 1 ")
    assert "exact layouts have the same weights" in lines[-1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_proof_that_is_stopped_proves_nothing(
    tmp_path_factory: pytest.TempPathFactory, number: int, code: int
) -> None:
    """Its first run has no end, so there is always one to stop."""
    folder = tmp_path_factory.mktemp("p")  # short: sockets of the workers lie there
    process = Process(["prove", *FEW, ENDLESS], folder, env={"TMPDIR": str(folder)})
    wait_until(lambda: [*folder.glob("convoy-prove-*/1/checkpoints/update-*")])
    process.send(number)
    said = process.wait()

    assert said.code == code
    assert "stopped after 0 layouts; nothing is proved" in said.err
    assert "exact layouts" not in said.out


@pytest.mark.parametrize(("fault", "code"), [("term@1:1", 75), ("int@1:1", 130)])
def test_layouts_before_a_stop_do_not_count_as_proof(tmp_path: Path, fault: str, code: int) -> None:
    """The first layout of two processes is the third."""
    said = convoy_process("prove", *FEW, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": fault})

    assert said.code == code
    assert "stopped after 2 layouts; nothing is proved" in said.err
    assert "exact layouts" not in said.out


@pytest.mark.parametrize(
    "words",
    [("--most-processes=0",), ("--updates=0",), ("--model=resnet7",), ("--output=x",)],
)
def test_a_wrong_option_is_refused(words: tuple[str, ...]) -> None:
    said = convoy("prove", "--quick", *words)

    assert said.code == 2
    assert "Traceback" not in said.err


def test_a_layout_with_other_weights_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second update of the last rank of a line is spoiled; nobody else holds its weights."""
    monkeypatch.setattr(prove, "all_layouts", lambda *_: [Layout(), Layout(stages=2)])
    monkeypatch.setenv("CONVOY_TEST_FAULTS", "flip@1:1")
    said = convoy("prove", *FEW)

    assert said.code == 5
    assert "no: differs by" in said.out
    assert "2 of 4 exact layouts differ from the first" in said.out
