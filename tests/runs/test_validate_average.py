"""`convoy validate` and `convoy average`."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.run_convoy import TINY, convoy

from convoy.checkpoint.format import weights_sha256
from convoy.config.schema import build_config
from convoy.models.network import plan_network
from convoy.run.network import build_network


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    words = ("--ckpts-per-epoch", "2", "--validation-mode", "after")
    assert convoy("train", *TINY, *words, "--output", run).code == 0
    return run


def scores(*words: str | Path) -> list[dict[str, Any]]:
    result = convoy("validate", *words, "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)
    return rows if isinstance(rows, list) else [rows]


def test_all_checkpoints_of_a_run_are_scored_in_order(run: Path) -> None:
    assert [row["update"] for row in scores(run)][:4] == [3, 6, 9, 12]


def test_the_last_checkpoint_has_the_score_of_the_run(run: Path) -> None:
    (score,) = scores(run / "checkpoints" / "update-12")
    summary = json.loads((run / "summary.json").read_text())

    assert score["top1"] == summary["top1"]
    assert score["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.parametrize("batch", ["1999", "7", "256", "5000"])
def test_every_sample_counts_once_for_any_batch_size(run: Path, batch: str) -> None:
    (score,) = scores(run / "checkpoints" / "update-6", "--valid-batch-size", batch)
    (default_score,) = scores(run / "checkpoints" / "update-6")

    assert score["samples"] == default_score["samples"] == 2000
    assert score["top1"] == default_score["top1"]


FRESH = ("--random-weights", "--model=resnet8", "--image-size=12", "--threads=1")


def test_an_untrained_network_is_scored_without_a_run() -> None:
    (score,) = scores(*FRESH)
    config = build_config({"model": "resnet8", "image_size": 12})
    plan = plan_network(config)
    network = build_network(plan, 0, torch.device("cpu"))
    result = convoy("validate", *FRESH)

    assert score["weights_sha256"] == weights_sha256(network.tensors())
    assert (score["checkpoint"], score["update"], score["samples"]) == (None, 0, 2000)
    assert result.out.startswith("random weights  top-1 ")
    assert scores(*FRESH, "--seed=1")[0]["weights_sha256"] != score["weights_sha256"]


def test_an_untrained_network_can_be_configured_by_a_file(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("model: resnet8\nimage_size: 12\nthreads: 1\nrandom_weights: true\n")

    assert _without_times(scores("--config-path", config)) == _without_times(scores(*FRESH))


def test_a_checkpoint_without_its_run_needs_a_configuration(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run / "checkpoints" / "update-12", tmp_path / "update-12")
    (score,) = scores(copy, "--config-path", run / "config.yaml")

    assert score["top1"] == scores(run / "checkpoints" / "update-12")[0]["top1"]


def test_options_of_validate_have_no_effect_on_training(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    result = convoy("train", *TINY, "--random-weights", "--repeat=2", "--output", run)
    rows = scores(run, "--repeat=1")

    assert result.out.count("has no effect on training: only `convoy validate` uses it") == 2
    assert [row["update"] for row in rows] == [6, 12]


def test_a_checkpoint_can_be_scored_repeatedly(run: Path) -> None:
    checkpoint = run / "checkpoints" / "update-6"
    result = convoy("validate", checkpoint, "--repeat", "3")
    rows = scores(checkpoint, "--repeat", "3")

    assert len(result.out.splitlines()) == len(rows) == 3
    assert _without_times(rows) == _without_times(scores(checkpoint)) * 3


def test_an_untrained_network_can_be_scored_repeatedly() -> None:
    assert _without_times(scores(*FRESH, "--repeat=2")) == _without_times(scores(*FRESH)) * 2


def test_the_time_of_a_batch_is_reported_when_enabled(run: Path) -> None:
    checkpoint = run / "checkpoints" / "update-6"
    (untimed,) = scores(checkpoint)
    (timed,) = scores(checkpoint, "--latency")
    result = convoy("validate", checkpoint, "--latency")

    assert set(timed) - set(untimed) == {"latency_ms", "latency_p99_ms"}
    assert 0 < timed["latency_ms"] <= timed["latency_p99_ms"] < 1000 * timed["seconds"]
    assert re.search(r"latency \d+\.\d\d ms per batch, p99 \d+\.\d\d ms$", result.out.strip())


def _without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("seconds", "images_per_second")
    return [{key: item for key, item in row.items() if key not in timed} for row in rows]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def average(run: Path, *words: str) -> dict[str, torch.Tensor]:
    result = convoy("average", run, *words)
    assert result.code == 0, result.err
    return weights(Path(result.out.split("  ")[0]))


def test_the_mean_of_the_last_two_checkpoints_is_exact(run: Path) -> None:
    averaged = average(run, "--weight-avg-n", "2", "--norm-statistics", "average")
    first, second = (weights(run / "checkpoints" / f"update-{n}") for n in (9, 12))
    name = "layer1.0.conv1.weight"
    expected = ((first[name].double() + second[name].double()) / 2).float()

    assert torch.equal(averaged[name], expected)


def test_statistics_of_an_average_are_kept_averaged_or_recomputed(run: Path) -> None:
    name = "bn1.running_mean"
    newest = weights(run / "checkpoints" / "update-12")[name]
    unchanged = average(run, "--norm-statistics", "keep")[name]
    averaged = average(run, "--norm-statistics", "average")[name]
    recomputed = average(run, "--norm-statistics", "recompute")[name]

    assert torch.equal(unchanged, newest)
    assert not torch.equal(averaged, newest)
    assert not torch.equal(recomputed, averaged)


def test_an_exponential_average_follows_its_formula(run: Path) -> None:
    words = ("--weight-avg-strategy=exponential", "--weight-avg-exp-decay=0.5")
    averaged = average(run, *words, "--norm-statistics=average")["fc.bias"]
    expected = None
    for update in (3, 6, 9, 12):
        bias = weights(run / "checkpoints" / f"update-{update}")["fc.bias"].double()
        expected = bias if expected is None else 0.5 * expected + 0.5 * bias

    assert torch.equal(averaged, expected.float())


def test_an_average_is_scored_like_a_checkpoint(run: Path) -> None:
    result = convoy("average", run)
    (score,) = scores(Path(result.out.split("  ")[0]))

    assert score["samples"] == 2000


def test_a_checkpoint_of_another_network_is_refused_with_its_differences(run: Path) -> None:
    result = convoy("validate", run / "checkpoints" / "update-12", "--model", "resnet14")

    assert result.code == 4
    assert "layer1.1.conv1.weight" in result.err


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    result = convoy("validate", tmp_path / "nothing")

    assert result.code == 2
    assert "does not exist" in result.err
