"""Mixup and cutmix are the same under every layout, also after a run is resumed in another one."""

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
OPTIONS = {
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
SINGLE_PROCESS = Layout()
REPLICAS = Layout(replicas=2)
STAGES = Layout(stages=2, workers=2)


def make_prover(folder: Path, **options: object) -> LayoutProver:
    resolved = resolve(
        RequestedOptions(named_config=settings_from("test", OPTIONS | options), environment={})
    )
    return LayoutProver(resolved, MICRO_BATCHES, folder)


@pytest.fixture(scope="module")
def single_process(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    return (
        make_prover(tmp_path_factory.mktemp("single")).train(SINGLE_PROCESS).summary.weights_sha256
    )


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("layout", [REPLICAS, STAGES], ids=["2 replicas", "2 stages"])
def test_a_layout_mixes_images_like_a_single_process(
    layout: Layout, on_host: bool, single_process: str | None, tmp_path: Path
) -> None:
    prover = make_prover(tmp_path, hostside_image_mixing=on_host)

    assert prover.train(layout).summary.weights_sha256 == single_process


def test_a_run_is_resumed_in_another_layout_within_an_epoch(
    single_process: str | None, tmp_path: Path
) -> None:
    prover = make_prover(tmp_path, updates=4, samples=3 * 4 * MICRO_BATCHES)
    full = prover.train(SINGLE_PROCESS).summary.weights_sha256

    assert prover.resume_under(REPLICAS, STAGES).summary.weights_sha256 == full != single_process


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
