"""Every example runs to its end, on small data."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbclient
import nbformat
import numpy as np
import pytest
import torch
from PIL import Image
from support.run_convoy import PATIENCE, convoy_process

import convoy

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
SMALL: dict[str, Any] = {"threads": 1, "progress": "none", "dataloader_worker": 0}
MAX_LINES = 60


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_photos(folder: Path) -> None:
    """Dark and bright photos, in a folder for each class."""
    for split, count in (("train", 16), ("validation", 4)):
        for label, level in (("dark", 40), ("bright", 200)):
            (folder / split / label).mkdir(parents=True)
            for index in range(count):
                pixels = np.full((40, 50, 3), level + index, np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{index}.jpg")


def run_python(*words: str) -> str:
    """Run the interpreter in a process, and return what it prints."""
    ended = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_example_says_what_it_shows_and_how_to_run_it() -> None:
    docs = {path: ast.get_docstring(ast.parse(path.read_text())) for path in SCRIPTS}

    undescribed = [
        path.name
        for path, text in docs.items()
        if text is None or not re.match(rf".+\.\n\npython examples/{path.name}\b", text)
    ]
    assert undescribed == []


def test_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in SCRIPTS}

    assert lengths and {name for name, lines in lengths.items() if lines >= MAX_LINES} == set()


def test_photos_are_trained_and_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos(tmp_path / "photos")
    options = {**SMALL, "image_size": 32, "micro_batch_size": 4}
    load("photos").main(tmp_path / "photos", output=str(tmp_path / "run"), **options)

    printed = capsys.readouterr().out
    assert "top-1" in printed and "0.jpg: " in printed


@pytest.mark.processes
def test_an_own_network_is_pipelined_stopped_and_resumed(tmp_path: Path) -> None:
    options = {**SMALL, "samples": 1024}
    load("own_network").main(output=str(tmp_path / "run"), **options)

    summary = convoy.Run(tmp_path / "run").summary
    assert summary.layout == "2 replicas × 2 stages" and summary.exit_reason == "done"


def test_an_own_dataset_is_learned(tmp_path: Path) -> None:
    load("own_dataset").main(output=str(tmp_path / "run"), **SMALL)

    assert (convoy.Run(tmp_path / "run").summary.top1 or 0) > 0.9


def test_imported_weights_are_fine_tuned(tmp_path: Path) -> None:
    load("fine_tune").main(folder=str(tmp_path), samples=256, **SMALL)

    assert convoy.Run(tmp_path / "tuned").summary.exit_reason == "done"


@pytest.mark.processes
def test_an_observer_draws_the_losses_of_a_run_with_two_processes(tmp_path: Path) -> None:
    options = {**SMALL, "samples": 512, "replicas": 2}
    load("observer").main(str(tmp_path / "run"), str(tmp_path / "loss.png"), **options)

    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_loop_stacks_its_results() -> None:
    results = load("loop").main()

    assert {name: tuple(tensor.shape) for name, tensor in results.items()} == {
        "sum": (10, 20),
        "difference": (10, 20),
    }


def test_every_loss_is_streamed() -> None:
    losses = load("streaming").main(iterations=12)

    assert len(losses) == 12 and losses[-1] < losses[0]


def test_a_dataset_is_measured() -> None:
    assert len(load("dataset_benchmark").main(epochs=2, elements=5)["epochs"]) == 2


def test_a_training_script_parses_its_options(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    words = [str(tmp_path / "photos"), "--model=resnet8", "--epochs=1", "--batch-size=4"]

    run = load("train").main(words, output=tmp_path / "run", image_size=32, **SMALL)

    assert run.summary.exit_reason == "done"
    assert (run.summary.updates, run.summary.epochs) == (8, 1)


def test_a_pipeline_learns_and_prints_its_timetable(capsys: pytest.CaptureFixture[str]) -> None:
    load("pipeline").main(updates=10)

    printed = capsys.readouterr().out
    accuracy = re.search(r"accuracy ([0-9.]+)%", printed)
    assert accuracy is not None and float(accuracy[1]) > 80
    assert "F3 B0" in printed


def test_replicated_training_reports_a_loss_for_each_update() -> None:
    losses = load("replicated").main(updates=5)

    assert len(losses) == 5 and losses[-1] < losses[0] / 2


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pipeline", "--shards"),
        pytest.param("replicated", "--replicas", marks=pytest.mark.evidence),
    ],
)
def test_an_example_prints_the_same_alone_launched_and_under_torchrun(
    name: str, options: str, tmp_path: Path
) -> None:
    """The losses of replicas are rounded differently, so the first three digits are compared."""
    script = str(EXAMPLES / f"{name}.py")
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", script]
    launched = convoy_process("launch", options, "2", script, scratch=tmp_path)
    assert launched.code == 0, launched.err

    numbers = [
        re.findall(r"\b(?:\d+\.\d{3}|[0-9a-f]{16})", printed)
        for printed in (run_python(script), run_python(*torchrun), launched.out)
    ]
    assert len(numbers[0]) >= 2 and numbers[0] == numbers[1] == numbers[2]


def test_concurrent_stages_train_the_weights_of_one_branch_after_the_other() -> None:
    concurrent, one_after_the_other = load("concurrent_stages").main(updates=2)

    assert concurrent == one_after_the_other


@pytest.mark.processes
@pytest.mark.slow
def test_concurrent_stages_train_the_same_weights_in_four_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("concurrent_stages").main()
    script = EXAMPLES / "concurrent_stages.py"
    launched = convoy_process("launch", "--shards=4", script, scratch=tmp_path)

    digests = [
        re.findall(r"weights ([0-9a-f]{16})", printed)
        for printed in (capsys.readouterr().out, launched.out)
    ]
    assert launched.code == 0, launched.err
    assert len(digests[0]) == 2 and digests[1] == digests[0][:1]


def test_gradients_are_accumulated_in_another_dtype_and_cast() -> None:
    received, losses = load("accumulator_dtype").main()

    assert received == torch.float32
    assert losses[-1] < losses[0] / 4


def test_offloaded_optimizer_state_trains_the_same_weights() -> None:
    assert load("offload").main(updates=3)


@pytest.mark.processes
def test_the_notebook_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))  # of the kernel
    notebook = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)

    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()

    results = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    assert "True" in results and "'1 replica × 2 stages'" in results
