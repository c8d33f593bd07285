"""Runs with --variable-filter, in every layout."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy

# Four updates of twelve micro-batches: enough for every schedule.
SMALL = [item for item in TINY if "micro-batch" not in item and "accum" not in item]
SMALL += ["--micro-batch-size=4", "--gradient-accumulation=12"]
SELECTED = ["--variable-filter", "layer2.0.conv2", "layer3.0.bn1"]
STATISTICS = ("running_mean", "running_var")


def trained(run: Path, *words: str) -> str:
    result = convoy("train", *SMALL, "--output", run, *words)
    assert (result.code, result.err) == (0, "")
    digest: str = json.loads((run / "summary.json").read_text())["weights_sha256"]
    return digest


def tensors(run: Path, update: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"update-{update}" / "model.safetensors")


def changed_weights(run: Path, reference: Path) -> set[str]:
    before, after = tensors(reference, 4), tensors(run, 4)
    return {name for name in after if not torch.equal(after[name], before[name])}


def test_unselected_weights_are_unchanged_but_norms_collect_statistics(tmp_path: Path) -> None:
    trained(tmp_path / "run", *SELECTED)
    trained(tmp_path / "initial", "--lr=0")
    changed = changed_weights(tmp_path / "run", tmp_path / "initial")

    assert {name for name in changed if not name.endswith(STATISTICS)} == {
        *("layer2.0.conv2.weight", "layer3.0.bn1.weight", "layer3.0.bn1.bias")
    }
    # Layers before the first selected one have the same statistics in both runs.
    assert {name for name in changed if name.startswith(("bn1.", "layer1."))} == set()
    assert tensors(tmp_path / "run", 4)["bn1.running_mean"].any()


def test_weights_can_be_selected_by_their_role(tmp_path: Path) -> None:
    trained(tmp_path / "run", "--variable-filter", "beta", "fc")
    trained(tmp_path / "initial", "--lr=0")
    changed = changed_weights(tmp_path / "run", tmp_path / "initial")
    selected = {name for name in changed if not name.endswith(STATISTICS)}

    assert "bn1.bias" in selected and "layer3.0.bn2.bias" in selected
    assert {name for name in selected if not name.endswith("bias")} == {"fc.weight"}


NORMAL = [
    # The first stage trains nothing; a shortcut without trained weights crosses the boundary.
    ("--pipeline-splits=layer1,layer2/0/bn2", "--pipeline-schedule=zero-bubble"),
    ("--pipeline-splits=layer3/0/bn2",),  # the last stage trains nothing
    ("--enable-recompute",),
    ("--replicas=2", "--gradient-accumulation=6", "--enable-optimizer-rts"),
]
REST = [
    ("--pipeline-splits=layer2/0/conv1",),  # the first stage trains nothing
    ("--pipeline-splits=layer2/0/conv2",),  # the second stage starts with the first trained layer
    (
        "--pipeline-splits=layer2/0/bn2",
    ),  # a shortcut without trained weights crosses the stage boundary
    ("--pipeline-splits=layer1,layer2/0/bn1,layer3", "--pipeline-schedule=1f1b"),
    ("--pipeline-splits=layer1,layer2/0/bn1", "--pipeline-schedule=zero-bubble"),
    ("--replicas=2", "--gradient-accumulation=6", "--bn-span=2"),
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
    reference: tuple[str, ...] = ()
    if "--bn-span=2" in words:  # batch statistics over two replicas are a different training
        reference = (*words, "--offload-optimizer")

    expected = trained(tmp_path / "reference", *reference, *SELECTED)
    assert trained(tmp_path / "run", *words, *SELECTED) == expected


def test_a_stopped_run_resumes_bit_exactly(tmp_path: Path) -> None:
    run = tmp_path / "run"
    expected = trained(tmp_path / "reference", *SELECTED)
    assert convoy("train", *SMALL, "--stop-after=1", "--output", run, *SELECTED).code == 75
    assert convoy("resume", run).code == 0

    assert json.loads((run / "summary.json").read_text())["weights_sha256"] == expected


def test_a_filter_that_matches_nothing_is_refused_with_an_example(tmp_path: Path) -> None:
    result = convoy("train", *SMALL, "--output", tmp_path / "run", "--variable-filter", "kernel")

    assert result.code == 2
    assert result.err.startswith("convoy: --variable-filter kernel leaves nothing to train: ")
    assert result.err.endswith(" conv1.weight\n")
