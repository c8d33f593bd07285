"""convoy.train and convoy.resume: results, observers, keywords, signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.run_convoy import convoy as run_command

import convoy
from convoy.errors import ConfigError
from convoy.events import Event, Noticed, Updated

TINY: dict[str, Any] = {
    "model": "resnet8",
    "image_size": 12,
    "samples": 96,
    "micro_batch_size": 8,
    "gradient_accumulation": 2,
    "epochs": 2,
    "lr": 0.02,
    "threads": 1,
    "progress": "none",
    "dataloader_worker": 0,
}


def test_a_run_trained_from_python_has_the_weights_of_the_same_command(tmp_path: Path) -> None:
    run = convoy.train(output=tmp_path / "python", **TINY)

    words = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    assert run_command("train", *words, f"--output={tmp_path / 'command'}").code == 0
    summary = json.loads((tmp_path / "command" / "summary.json").read_text())
    assert run.summary.weights_sha256 == summary["weights_sha256"]


def test_a_run_shows_its_metrics_validations_checkpoints_and_options(tmp_path: Path) -> None:
    run = convoy.train(output=tmp_path / "run", logs_per_epoch=2, **TINY)

    assert run.metrics["update"].tolist() == [3, 6, 9, 12]
    assert np.isfinite(run.metrics["loss"]).all()
    assert run.validations["top1"].shape == run.validations["update"].shape == (1,)
    assert [path.name for path in run.checkpoints] == ["update-6", "update-12"]
    assert run.config["lr"] == 0.02
    assert os.fspath(run) == str(tmp_path / "run")


def test_a_run_draws_its_curves(tmp_path: Path) -> None:
    run = convoy.train(output=tmp_path / "run", **TINY)

    figure = run.plot(tmp_path / "curves.png")

    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    labels = {text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()}
    assert labels == {"training", "validation"}


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        convoy.Run(tmp_path)


def test_resume_continues_to_the_same_weights(tmp_path: Path) -> None:
    full = convoy.train(output=tmp_path / "full", **TINY)
    stopped = convoy.train(output=tmp_path / "stopped", stop_after=6, **TINY)
    assert stopped.summary.exit_reason == "limit"

    resumed = convoy.resume(stopped)

    assert resumed.summary.weights_sha256 == full.summary.weights_sha256


def test_resume_refuses_a_change_of_the_training(tmp_path: Path) -> None:
    run = convoy.train(output=tmp_path / "run", stop_after=6, **TINY)

    with pytest.raises(ConfigError, match=r"--lr was 0\.02, now 0\.5"):
        convoy.resume(run, lr=0.5)


def test_the_torch_settings_of_the_caller_do_not_change_a_run(tmp_path: Path) -> None:
    expected = convoy.train(output=tmp_path / "expected", **TINY)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
            torch.device("meta"),
        ):
            run = convoy.train(output=tmp_path / "run", **TINY)
            scores = convoy.validate(run)
            model = convoy.load(run)
            assert torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)

    assert run.summary.weights_sha256 == expected.summary.weights_sha256
    assert scores[-1].top1 == run.summary.top1
    assert torch.equal(torch.get_rng_state(), state)
    assert {item.dtype for item in model.parameters()} == {torch.float32}


def test_an_observer_that_disables_gradients_does_not_change_a_run(tmp_path: Path) -> None:
    expected = convoy.train(output=tmp_path / "expected", **TINY)

    run = convoy.train(
        output=tmp_path / "run", observers=[lambda _: torch.set_grad_enabled(False)], **TINY
    )

    assert torch.is_grad_enabled()
    assert run.summary.weights_sha256 == expected.summary.weights_sha256


@pytest.mark.parametrize("observers", [print, None, [3], "print"])
def test_observers_that_are_no_functions_are_refused(observers: Any) -> None:
    with pytest.raises(TypeError, match="observers must be a list of functions"):
        convoy.train(observers=observers, **TINY)


@pytest.mark.processes
def test_observers_see_the_same_events_with_one_process_and_two(tmp_path: Path) -> None:
    kinds: list[list[str]] = []
    for replicas, accumulation in ((1, 2), (2, 1)):
        seen: list[Event] = []
        options = TINY | {"replicas": replicas, "gradient_accumulation": accumulation}
        convoy.train(output=tmp_path / str(replicas), observers=[seen.append], **options)
        names = [type(event).__name__ for event in seen]
        kinds.append([name for name in names if name != "Saved"])  # written in the background

    assert kinds[0] == kinds[1]
    assert kinds[0].count("Updated") == 12 and kinds[0][-1] == "Ended"


@pytest.mark.processes
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_observer_that_raises_is_reported_once_and_removed(
    tmp_path: Path, replicas: int
) -> None:
    calls, seen = [], list[Event]()

    def failing(event: Event) -> None:
        calls.append(event)
        raise ValueError("no more")

    options = TINY | {"replicas": replicas, "gradient_accumulation": 2 // replicas}
    run = convoy.train(output=tmp_path / "run", observers=[failing, seen.append], **options)

    notices = [event for event in seen if isinstance(event, Noticed)]
    assert len(calls) == 1 and run.summary.exit_reason == "done"
    assert ["no more" in notice.text for notice in notices].count(True) == 1


@pytest.mark.parametrize(
    ("keywords", "facts"),
    [
        ({"modle": "x"}, ["modle=", "model"]),
        ({"lr": "fast"}, ["lr=", "number", "fast"]),
        ({"epochs": -1}, ["epoch=", "greater than 0", "-1"]),
        ({"model": "resnet21"}, ["--model", "resnet21", "resnet2"]),
        ({"lr": -1, "epochs": -1}, ["lr=", "epoch="]),
    ],
)
def test_a_wrong_keyword_is_reported_with_its_facts(
    keywords: dict[str, Any], facts: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        convoy.train(**keywords)

    assert all(fact in str(error.value) for fact in facts)


def test_a_run_restores_the_settings_of_torch(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)

    convoy.train(output=tmp_path / "run", **{**TINY, "threads": 2})

    assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()


SCRIPT = """
import sys, convoy
print("script started", flush=True)
run = convoy.train(model="resnet8", image_size=12, samples=96, micro_batch_size=8, epochs=EPOCHS,
                   replicas=2, threads=1, progress="none", output=sys.argv[1],
                   observers=[lambda event: print(type(event).__name__, flush=True)])
print("code after the run", run.summary.exit_reason)
"""


@pytest.mark.processes
def test_several_processes_work_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("EPOCHS", "1"))

    result = subprocess.run(
        [sys.executable, script, tmp_path / "run"], capture_output=True, text=True, check=True
    )

    assert result.stdout.count("script started") == 1  # not once more per worker
    assert "code after the run done" in result.stdout


@pytest.mark.processes
def test_an_interrupt_saves_the_run_and_raises_keyboard_interrupt(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("EPOCHS", "100000"))
    with subprocess.Popen(
        [sys.executable, script, tmp_path / "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while "Updated" not in (line := process.stdout.readline()):
            assert line, "the script ended early"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()

    assert "KeyboardInterrupt" in err and "code after the run" not in out
    assert convoy.Run(tmp_path / "run").summary.exit_reason == "interrupted"
    assert list((tmp_path / "run" / "checkpoints").glob("update-*"))


def test_a_second_interrupt_stops_at_once_and_the_process_continues(tmp_path: Path) -> None:
    """The first one is waiting for the end of the update when the second one arrives."""
    full = convoy.train(output=tmp_path / "full", **TINY)
    saved = tmp_path / "run" / "checkpoints" / "update-6" / "MANIFEST.json"

    def interrupt(event: Event) -> None:
        if isinstance(event, Updated) and event.update == 9:
            while not saved.exists():  # it is written in the background
                time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("the second interrupt did not arrive")

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        convoy.train(output=tmp_path / "run", observers=[interrupt], **TINY)

    assert signal.getsignal(signal.SIGINT) is handler
    run = convoy.Run(tmp_path / "run")
    assert [path.name for path in run.checkpoints] == ["update-6"]  # nothing was saved at the stop
    assert convoy.resume(run).summary.weights_sha256 == full.summary.weights_sha256
