"""Every example runs to its end, on small data."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import nbclient
import nbformat
import numpy as np
import pytest
from PIL import Image

import convoy

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: dict[str, Any] = {"threads": 1, "progress": "none", "dataloader_worker": 0}
MAX_LINES = 60


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}

    assert lengths and {name for name, lines in lengths.items() if lines >= MAX_LINES} == set()


def test_photos_are_trained_and_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, count in (("train", 16), ("validation", 4)):
        for label, level in (("dark", 40), ("bright", 200)):
            folder = tmp_path / "photos" / split / label
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = np.full((40, 50, 3), level + index, np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.jpg")

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
