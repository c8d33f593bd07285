"""Extreme option values: each has a defined result or an error, never a crash."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, CommandResult, convoy

from convoy.config.schema import option_table

# One epoch of six updates, validated at its end.
WORDS = [item for item in TINY if not item.startswith(("--epoch", "--validation", "--lr"))]
WORDS += ["--epoch=1", "--validation-mode=after"]


def train(run: Path, *words: str) -> CommandResult:
    return convoy("train", *WORDS, *words, "--output", run)


def summary(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return record


def tensors(run: Path, update: int = 6) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"update-{update}" / "model.safetensors")


def rates(run: Path) -> set[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {json.loads(line)["learning_rate"] for line in lines}


def assert_finite(run: Path) -> None:
    assert summary(run)["exit_reason"] == "done"
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors(run).values())


@pytest.mark.parametrize("more", [(), ("--warmup-epoch=1", "--lr-schedule=polynomial")])
def test_a_rate_of_zero_changes_statistics_but_no_weight(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    codes = [train(once, "--lr=0", *more).code, train(twice, "--lr=0", "--epoch=2", *more).code]
    short, long = tensors(once), tensors(twice, 12)
    changed = {name for name in short if not torch.equal(short[name], long[name])}

    assert codes == [0, 0]
    assert rates(once) == {0}
    assert changed and all(".running_" in name for name in changed)


@pytest.mark.parametrize(
    "words",
    [
        ("--lr=1e30",),
        ("--lr=1e30", "--logs-per-epoch=0"),
        ("--lr=1e30", "--ema-decay=0.9"),
        ("--base-learning-rate-exponent=90",),
        ("--lr=0.1", "--weight-decay=1e30"),
    ],
)
def test_an_extreme_rate_is_an_error_and_no_invalid_weights_are_saved(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    result = train(tmp_path / "run", *words)
    saved = (tmp_path / "run" / "checkpoints").glob("update-*/*.safetensors")
    values = [item for path in saved for item in load_file(path).values()]

    assert result.code == 5
    assert result.err.startswith("convoy: ") and len(result.err.splitlines()) <= 2
    assert all(bool(torch.isfinite(value).all()) for value in values)
    assert summary(tmp_path / "run")["exit_reason"] == "NotFiniteError"


def test_a_large_rate_that_stays_finite_is_not_an_error(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--lr=1000").code == 0
    assert_finite(tmp_path / "run")


@pytest.mark.skipif(
    option_table()["weight_decay_spares"].available_values is not None,
    reason="this version decays only matrices",
)
def test_norms_that_decay_become_smaller_and_stay_finite(tmp_path: Path) -> None:
    for exempt in ("nothing", "vectors"):
        words = ("--lr=0.1", "--weight-decay=0.5", f"--weight-decay-spares={exempt}")
        assert train(tmp_path / exempt, *words).code == 0
        assert_finite(tmp_path / exempt)
    decayed, not_decayed = tensors(tmp_path / "nothing"), tensors(tmp_path / "vectors")

    assert decayed["bn1.weight"].abs().sum() < 0.9 * not_decayed["bn1.weight"].abs().sum()


@pytest.mark.parametrize("decay", ["1", "10"])
def test_large_weight_decay_keeps_the_run_finite(decay: str, tmp_path: Path) -> None:
    words = ("--lr=0.1", f"--weight-decay={decay}", "--momentum=0")
    assert train(tmp_path / "run", *words).code == 0
    assert_finite(tmp_path / "run")


def test_a_micro_batch_of_one_image_is_normalized_over_its_pixels(tmp_path: Path) -> None:
    words = ("--micro-batch-size=1", "--gradient-accumulation=16", "--norm-type=batch")
    assert train(tmp_path / "run", *words).code == 0
    assert_finite(tmp_path / "run")


def test_a_single_pixel_of_one_image_has_no_variance_and_is_refused(tmp_path: Path) -> None:
    words = ("--model=resnet18", "--stem=large", "--image-size=32", "--micro-batch-size=1")
    result = train(tmp_path / "run", *words, "--norm-type=batch")

    assert result.code == 2
    assert "batch norm needs more than one value per channel" in result.err
    assert "use --micro-batch-size 2 or --norm-type group" in result.err
    assert not (tmp_path / "run").exists()


def test_a_single_pixel_of_two_images_has_a_variance(tmp_path: Path) -> None:
    words = ("--model=resnet18", "--stem=large", "--image-size=32", "--micro-batch-size=2")
    result = train(tmp_path / "run", *words, "--samples=4", "--norm-type=batch")

    assert result.code == 0
    assert summary(tmp_path / "run")["exit_reason"] == "done"


@pytest.mark.parametrize("over", ["all", "others"])
@pytest.mark.parametrize("share", ["0", "0.1", "1"])
def test_classes_without_training_samples_are_validated(
    share: str, over: str, tmp_path: Path
) -> None:
    few = ("--samples=5", "--micro-batch-size=5", "--gradient-accumulation=1", "--updates=6")
    smoothed = (f"--label-smoothing={share}", f"--label-smoothing-over={over}")
    words = [item for item in WORDS if item != "--epoch=1"]
    result = convoy("train", *words, *few, *smoothed, "--output", tmp_path / "run")
    reported = summary(tmp_path / "run")

    assert result.code == 0
    assert_finite(tmp_path / "run")
    assert 0 <= reported["top1"] <= reported["top5"] <= 1


def test_more_classes_than_samples_are_trained(tmp_path: Path) -> None:
    words = ("--data=generated", "--num-classes=1000", "--samples=16")

    assert train(tmp_path / "run", *words).code == 0
    assert summary(tmp_path / "run")["updates"] == 1


def test_a_momentum_of_one_stays_finite(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--momentum=1", "--lr=0.01").code == 0
    assert_finite(tmp_path / "run")
