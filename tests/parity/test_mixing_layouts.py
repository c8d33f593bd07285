"""Mixup and cutmix are the same under every layout, and when a run goes on in another."""

import json
from pathlib import Path

import pytest
from support.run_convoy import convoy

from convoy.cli.prove import LayoutProver
from convoy.config.resolve import resolve
from convoy.config.schema import RequestedOptions, settings_from
from convoy.planning.topology import Layout

pytestmark = pytest.mark.processes

MICRO_BATCHES = 4
ASKED = {
    "model": "resnet8",
    "image_size": 12,
    "micro_batch_size": 4,
    "gradient_accumulation": MICRO_BATCHES,
    "updates": 4,
    "samples": 2 * 4 * MICRO_BATCHES,
    "lr": 0.02,
    "threads": 1,
    "mixup_alpha": 0.4,
    "cutmix_lambda_low": 0.2,
    "cutmix_lambda_high": 0.8,
    "cutmix_disable_prob": 0.25,
}
ALONE = Layout()
REPLICAS = Layout(replicas=2)
STAGES = Layout(stages=2, workers=2)


def bench_of(folder: Path, **more: object) -> LayoutProver:
    resolved = resolve(
        RequestedOptions(named_config=settings_from("test", ASKED | more), environment={})
    )
    return LayoutProver(resolved, MICRO_BATCHES, folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    return bench_of(tmp_path_factory.mktemp("alone")).train(ALONE).summary.weights_sha256


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("layout", [REPLICAS, STAGES], ids=["2 replicas", "2 stages"])
def test_a_layout_mixes_as_one_process_does(
    layout: Layout, on_host: bool, alone: str | None, tmp_path: Path
) -> None:
    bench = bench_of(tmp_path, hostside_image_mixing=on_host)

    assert bench.train(layout).summary.weights_sha256 == alone


def test_a_run_goes_on_in_another_layout_within_an_epoch(alone: str | None, tmp_path: Path) -> None:
    bench = bench_of(tmp_path, updates=4, samples=3 * 4 * MICRO_BATCHES)
    full = bench.train(ALONE).summary.weights_sha256

    assert bench.resume_under(REPLICAS, STAGES).summary.weights_sha256 == full != alone


@pytest.mark.evidence
@pytest.mark.timeout(600)
@pytest.mark.parametrize("micro", [2, 4])
def test_all_layouts_have_the_weights_of_one_process(micro: int) -> None:
    mixing = ("--mixup-alpha=0.2", "--cutmix-lambda-low=0.2", "--cutmix-lambda-high=0.8")
    result = convoy("prove", "--quick", "--json", *mixing, f"--micro-batch-size={micro}")
    found = json.loads(result.out)["layouts"]

    assert (result.code, result.err) == (0, "")
    assert {item["weights_sha256"] for item in found if item["exact"]} == {
        found[0]["weights_sha256"]
    }
    assert any(item["resumed_from"] for item in found)
