"""Checkpoints are measured and averaged."""

import json
from pathlib import Path

import pytest
import torch
from running import TINY, convoy
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    words = ("--ckpts-per-epoch", "2", "--validation-mode", "after")
    assert convoy("train", *TINY, *words, "--output", run).code == 0
    return run


def scores(*words: str | Path) -> list[dict[str, object]]:
    said = convoy("validate", *words, "--json")
    assert said.code == 0, said.err
    rows = json.loads(said.out)
    return rows if isinstance(rows, list) else [rows]


def test_all_checkpoints_of_a_run_are_measured_in_order(run: Path) -> None:
    assert [row["update"] for row in scores(run)][:4] == [3, 6, 9, 12]


def test_the_last_checkpoint_scores_as_the_run_itself_did(run: Path) -> None:
    (score,) = scores(run / "checkpoints" / "update-12")
    summary = json.loads((run / "summary.json").read_text())

    assert score["top1"] == summary["top1"]
    assert score["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.parametrize("batch", ["1999", "7", "256", "5000"])
def test_every_sample_counts_once_whatever_the_batch(run: Path, batch: str) -> None:
    (score,) = scores(run / "checkpoints" / "update-6", "--valid-batch-size", batch)
    (whole,) = scores(run / "checkpoints" / "update-6")

    assert score["samples"] == whole["samples"] == 2000
    assert score["top1"] == whole["top1"]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def average(run: Path, *words: str) -> dict[str, torch.Tensor]:
    said = convoy("average", run, *words)
    assert said.code == 0, said.err
    return weights(Path(said.out.split("  ")[0]))


def test_the_mean_of_the_last_two_is_their_mean(run: Path) -> None:
    made = average(run, "--weight-avg-n", "2", "--norm-statistics", "average")
    one, other = (weights(run / "checkpoints" / f"update-{n}") for n in (9, 12))
    name = "layer1.0.conv1.weight"
    expected = ((one[name].double() + other[name].double()) / 2).float()

    assert torch.equal(made[name], expected)


def test_statistics_are_kept_averaged_or_recomputed(run: Path) -> None:
    name = "bn1.running_mean"
    newest = weights(run / "checkpoints" / "update-12")[name]
    kept = average(run, "--norm-statistics", "keep")[name]
    averaged = average(run, "--norm-statistics", "average")[name]
    fresh = average(run, "--norm-statistics", "recompute")[name]

    assert torch.equal(kept, newest)
    assert not torch.equal(averaged, newest)
    assert not torch.equal(fresh, averaged)


def test_an_exponential_average_follows_its_formula(run: Path) -> None:
    words = ("--weight-avg-strategy=exponential", "--weight-avg-exp-decay=0.5")
    made = average(run, *words, "--norm-statistics=average")["fc.bias"]
    expected = None
    for update in (3, 6, 9, 12):
        bias = weights(run / "checkpoints" / f"update-{update}")["fc.bias"].double()
        expected = bias if expected is None else 0.5 * expected + 0.5 * bias

    assert torch.equal(made, expected.float())


def test_an_average_is_measured_like_a_checkpoint(run: Path) -> None:
    said = convoy("average", run)
    (score,) = scores(Path(said.out.split("  ")[0]))

    assert score["samples"] == 2000


def test_a_checkpoint_of_another_network_is_refused_with_its_differences(run: Path) -> None:
    said = convoy("validate", run / "checkpoints" / "update-12", "--model", "resnet14")

    assert said.code == 4
    assert "layer1.1.conv1.weight" in said.err


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    said = convoy("validate", tmp_path / "nothing")

    assert said.code == 2
    assert "does not exist" in said.err
