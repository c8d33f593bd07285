"""Runs with --pretrained."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.foreign_weights import target_for, tensors
from support.run_convoy import TINY, convoy

WORDS = [word for word in TINY if not word.startswith("--epoch")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Weights of resnet8 for 1000 classes, with the names of torchvision."""
    expected = target_for("resnet8", num_classes=1000).tensors
    state_dict = tensors({name: tuple(tensor.shape) for name, tensor in expected.items()})
    torch.save({"state_dict": state_dict}, tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


def started_run(run: Path, file: Path | str, *words: str) -> list[str]:
    result = convoy("train", *WORDS, f"--pretrained={file}", *words, "--updates=1", "--output", run)
    assert (result.code, result.err) == (0, "")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event["text"] for event in events if event.get("kind") == "init"]


def test_a_run_starts_with_pretrained_weights_and_reports_conversions(
    tmp_path: Path, file: Path
) -> None:
    reported = started_run(tmp_path / "run", file, "--lr=0")
    path = tmp_path / "run" / "checkpoints" / "update-1" / "model.safetensors"
    pretrained = torch.load(file, weights_only=True)["state_dict"]
    final = load_file(path)

    assert reported[0].startswith(f"initial weights: {file} (torchvision keys), sha256 ")
    assert reported[1:] == [
        "read from the key 'state_dict'",
        "fc is reinitialized: the weights have 1,000 classes, but the model has 10",
    ]
    assert torch.equal(final["layer2.0.conv1.weight"], pretrained["layer2.0.conv1.weight"])


@pytest.mark.processes
def test_every_layout_starts_with_the_same_weights(tmp_path: Path, file: Path) -> None:
    started_run(tmp_path / "single", file)
    started_run(tmp_path / "stages", file, "--shards=2")
    summaries = [
        json.loads((tmp_path / run / "summary.json").read_text()) for run in ("single", "stages")
    ]

    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--pretrained=nothing.pth"], 4, "nothing.pth does not exist"),
        (["--pretrained"], 2, "no published weights for resnet8, only for resnet18, "),
        (
            ["--pretrained", "--init-path=x"],
            2,
            "--pretrained and --init-path both set the initial weights",
        ),
        (["--pretrained=hf:resnet50"], 2, "is not a valid Hub address; use hf:OWNER/NAME"),
    ],
)
def test_unavailable_weights_end_with_one_line_and_leave_no_folder(
    tmp_path: Path, words: list[str], code: int, reason: str
) -> None:
    result = convoy("train", *WORDS, *words, "--updates=1", "--output", tmp_path / "run")

    assert result.code == code
    assert reason in result.err and result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_does_not_load_other_weights(tmp_path: Path, file: Path) -> None:
    started_run(tmp_path / "run", file)
    result = convoy("resume", tmp_path / "run", f"--pretrained={file}")

    assert result.code == 2
    assert "--pretrained cannot be set: a resumed run continues with its own weights" in result.err
