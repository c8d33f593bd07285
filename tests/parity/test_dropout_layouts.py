"""Dropout masks are the same under every layout, also after a run is resumed in another one."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.model_families import ALL as FAMILIES
from support.run_convoy import convoy

from convoy.cli.prove import LayoutProver
from convoy.config.resolve import resolve
from convoy.config.schema import RequestedOptions, settings_from
from convoy.planning.topology import Layout

pytestmark = pytest.mark.processes

MICRO_BATCHES = 4
OPTIONS = {
    "data": "generated",
    "num_classes": 10,
    "micro_batch_size": 2,
    "gradient_accumulation": MICRO_BATCHES,
    "updates": 2,
    "samples": 2 * 2 * MICRO_BATCHES,
    "lr": 0.02,
    "threads": 1,
}
SINGLE_PROCESS = Layout()
REPLICAS = Layout(replicas=2)
LOOPED = Layout(stages=4, schedule="looped")
LAYOUTS = (
    Layout(recompute=True),
    REPLICAS,
    Layout(stages=2, recompute=True),
    Layout(stages=2, schedule="zero-bubble"),
    Layout(stages=2, replicas=2),
    LOOPED,
)
QUICK_LAYOUTS = LAYOUTS[2:5]  # recomputation, stages and replicas; looped is used for resuming


def make_prover(folder: Path, **options: object) -> LayoutProver:
    small = FAMILIES["efficientnet with dropout"]
    requested = {**OPTIONS, **small.options, "image_size": small.size, **options}
    resolved = resolve(
        RequestedOptions(named_config=settings_from("test", requested), environment={})
    )
    return LayoutProver(resolved, MICRO_BATCHES, folder)


@pytest.fixture(scope="module")
def single_process(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """The digest of the weights that one process trains."""
    return (
        make_prover(tmp_path_factory.mktemp("single")).train(SINGLE_PROCESS).summary.weights_sha256
    )


def different_layouts(
    layouts: Sequence[Layout], expected: str | None, folder: Path
) -> list[Layout]:
    prover = make_prover(folder)
    return [layout for layout in layouts if prover.train(layout).summary.weights_sha256 != expected]


@pytest.mark.slow
def test_layouts_drop_the_same_activations(single_process: str | None, tmp_path: Path):
    assert different_layouts(QUICK_LAYOUTS, single_process, tmp_path) == []


@pytest.mark.evidence
def test_every_layout_drops_the_same_activations(single_process: str | None, tmp_path: Path):
    assert different_layouts(LAYOUTS, single_process, tmp_path) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(REPLICAS, LOOPED, marks=pytest.mark.evidence),
        pytest.param(LOOPED, SINGLE_PROCESS, marks=pytest.mark.slow),
    ],
)
def test_a_run_resumed_in_another_layout_drops_the_same_activations(
    before: Layout, after: Layout, single_process: str | None, tmp_path: Path
):
    resumed = make_prover(tmp_path).resume_under(before, after)

    assert resumed.summary.weights_sha256 == single_process


def test_dropout_changes_the_weights(single_process: str | None, tmp_path: Path):
    no_dropout = make_prover(tmp_path, block_survival_prob=1.0, dropout_rate=0.0).train(
        SINGLE_PROCESS
    )

    assert single_process != no_dropout.summary.weights_sha256


NETWORKS = (
    "efficientnet with dropout",
    "efficientnet with proxy norm",
    "efficientnet strided",
    "efficientnet one pass",
    "mobilenet",
    "mobilenet-v3-small",
    "squeezenet with dropout",
    "resnext11",
)


@pytest.mark.evidence
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", NETWORKS)
def test_all_layouts_of_a_family_have_the_weights_of_one_process(family: str):
    small = FAMILIES[family]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in small.options.items()]
    flags = [_as_flag(option) for option in (*options, f"--image-size={small.size}")]
    result = convoy("prove", "--quick", "--max-processes=4", "--updates=2", "--json", *flags)
    found = json.loads(result.out)["layouts"]

    assert (result.code, result.err) == (0, "")
    assert {item["weights_sha256"] for item in found if item["exact"]} == {
        found[0]["weights_sha256"]
    }
    assert {"zero-bubble", "looped", "grouped", None} <= {item["schedule"] for item in found}
    assert any(item["resumed_from"] for item in found)


def _as_flag(option: str) -> str:
    """A boolean option has no value: `--proxy-norm`, `--no-stable-norm`."""
    flag, value = option.removeprefix("--").split("=")
    return {"True": f"--{flag}", "False": f"--no-{flag}"}.get(value, option)
