"""Runs with frozen layers, in every layout and after a resume."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy

FIRST = "--fine-tune-first-trainable-layer"
# Four updates of twelve micro-batches: enough for every schedule.
SMALL = [item for item in TINY if "micro-batch" not in item and "accum" not in item]
SMALL += ["--micro-batch-size=4", "--gradient-accumulation=12"]


def trained(run: Path, *words: str) -> str:
    result = convoy("train", *SMALL, *words, "--output", run)
    assert (result.code, result.err) == (0, "")
    digest: str = json.loads((run / "summary.json").read_text())["weights_sha256"]
    return digest


def tensors(run: Path, update: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"update-{update}" / "model.safetensors")


def test_frozen_layers_keep_their_weights_and_statistics(tmp_path: Path) -> None:
    trained(tmp_path / "run", f"{FIRST}=layer2/0/conv2")
    trained(tmp_path / "fresh", "--lr=0")
    before, after = tensors(tmp_path / "fresh", 4), tensors(tmp_path / "run", 4)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    changed_weights = {name for name in changed if ".running_" not in name}
    frozen = ("conv1.", "bn1.", "layer1.", "layer2.0.conv1.", "layer2.0.bn1.")

    assert changed_weights == {
        name for name in after if not name.startswith(frozen) and ".running_" not in name
    }
    # Statistics of frozen norms keep their initial values.
    assert not after["bn1.running_mean"].any() and (after["bn1.running_var"] == 1).all()
    assert after["layer2.0.bn2.running_mean"].any()


NORMAL = [
    # The first stage is frozen, and a frozen shortcut crosses the stage boundary.
    ("--pipeline-splits=layer1,layer2/0/bn2", "--pipeline-schedule=zero-bubble"),
    ("--pipeline-splits=layer2/0/conv2",),  # the second stage starts with the first trained layer
    ("--enable-recompute",),
    ("--replicas=2", "--gradient-accumulation=6", "--enable-optimizer-rts"),
]
REST = [
    ("--pipeline-splits=layer2/0/conv1",),  # the first stage is frozen
    ("--pipeline-splits=layer2/0/bn2",),  # a frozen shortcut crosses the stage boundary
    ("--pipeline-splits=layer1,layer2/0/bn1,layer3", "--pipeline-schedule=1f1b"),
    ("--pipeline-splits=layer1,layer2/0/bn1", "--pipeline-schedule=zero-bubble"),
    ("--replicas=2", "--gradient-accumulation=6", "--pipeline-splits=layer2/0/conv1"),
]


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [*NORMAL, *(pytest.param(words, marks=pytest.mark.evidence) for words in REST)],
    ids=" ".join,
)
def test_every_layout_gives_the_weights_of_one_process(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    first = f"{FIRST}=layer2/0/conv2"

    assert trained(tmp_path / "run", first, *words) == trained(tmp_path / "reference", first)


def test_the_frozen_layers_are_reported(tmp_path: Path) -> None:
    trained(tmp_path / "run", f"{FIRST}=fc")
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    (reported,) = [event["text"] for event in events if event.get("kind") == "frozen"]

    assert reported.endswith(
        "layers (74,640 of 75,290 parameters), training starts at fc; "
        "their weights are random: set --pretrained or --init-path"
    )


def test_a_stopped_run_resumes_and_can_train_all_layers(tmp_path: Path) -> None:
    run, first = tmp_path / "run", f"{FIRST}=layer3"
    expected = trained(tmp_path / "reference", first)
    assert convoy("train", *SMALL, first, "--stop-after=1", "--output", run).code == 75
    assert convoy("resume", run).code == 0

    assert json.loads((run / "summary.json").read_text())["weights_sha256"] == expected

    again = tmp_path / "again"
    assert convoy("train", *SMALL, first, "--stop-after=1", "--output", again).code == 75
    refused = convoy("resume", again, f"{FIRST}=conv1")
    overridden = convoy("resume", again, f"{FIRST}=conv1", "--override")

    assert (refused.code, overridden.code) == (2, 0), overridden.err
    assert json.loads((again / "summary.json").read_text())["weights_sha256"] != expected
