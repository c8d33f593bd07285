"""What is left out by chance is the same under every layout, and when a run goes on in another."""

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
ASKED = {
    "data": "generated",
    "num_classes": 10,
    "micro_batch_size": 2,
    "gradient_accumulation": MICRO_BATCHES,
    "updates": 2,
    "samples": 2 * 2 * MICRO_BATCHES,
    "lr": 0.02,
    "threads": 1,
}
ALONE = Layout()
REPLICAS = Layout(replicas=2)
AROUND = Layout(stages=4, schedule="looped")
LAYOUTS = (
    Layout(recompute=True),
    REPLICAS,
    Layout(stages=2, recompute=True),
    Layout(stages=2, schedule="zero-bubble"),
    Layout(stages=2, replicas=2),
    AROUND,
)
QUICK_LAYOUTS = LAYOUTS[2:5]  # recomputation, stages and replicas; a resumed run is looped


def bench_of(folder: Path, **more: object) -> LayoutProver:
    small = FAMILIES["efficientnet with dropout"]
    requested = {**ASKED, **small.options, "image_size": small.size, **more}
    resolved = resolve(
        RequestedOptions(named_config=settings_from("test", requested), environment={})
    )
    return LayoutProver(resolved, MICRO_BATCHES, folder)


@pytest.fixture(scope="module")
def single_process(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """The weights of one process, for all tests."""
    return bench_of(tmp_path_factory.mktemp("single")).train(ALONE).summary.weights_sha256


def different_layouts(
    layouts: Sequence[Layout], expected: str | None, folder: Path
) -> list[Layout]:
    bench = bench_of(folder)
    return [layout for layout in layouts if bench.train(layout).summary.weights_sha256 != expected]


@pytest.mark.slow
def test_layouts_drop_the_same_activations(single_process: str | None, tmp_path: Path):
    assert different_layouts(QUICK_LAYOUTS, single_process, tmp_path) == []


@pytest.mark.evidence
def test_every_layout_drops_the_same_activations(single_process: str | None, tmp_path: Path):
    assert different_layouts(LAYOUTS, single_process, tmp_path) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(REPLICAS, AROUND, marks=pytest.mark.evidence),
        pytest.param(AROUND, ALONE, marks=pytest.mark.slow),
    ],
)
def test_a_run_resumed_in_another_layout_drops_the_same_activations(
    before: Layout, after: Layout, single_process: str | None, tmp_path: Path
):
    resumed = bench_of(tmp_path).resume_under(before, after)

    assert resumed.summary.weights_sha256 == single_process


def test_dropout_changes_the_weights(single_process: str | None, tmp_path: Path):
    without = bench_of(tmp_path, block_survival_prob=1.0, dropout_rate=0.0).train(ALONE)

    assert single_process != without.summary.weights_sha256


PROVED = (
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
@pytest.mark.parametrize("name", PROVED)
def test_all_layouts_of_a_family_have_the_weights_of_one_process(name: str):
    small = FAMILIES[name]
    words = [f"--{option.replace('_', '-')}={value}" for option, value in small.options.items()]
    flags = [_spoken(word) for word in (*words, f"--image-size={small.size}")]
    result = convoy("prove", "--quick", "--most-processes=4", "--updates=2", "--json", *flags)
    found = json.loads(result.out)["layouts"]

    assert (result.code, result.err) == (0, "")
    assert {item["weights_sha256"] for item in found if item["exact"]} == {
        found[0]["weights_sha256"]
    }
    assert {"zero-bubble", "looped", "grouped", None} <= {item["schedule"] for item in found}
    assert any(item["resumed_from"] for item in found)


def _spoken(word: str) -> str:
    """A switch has no value: `--proxy-norm`, `--no-stable-norm`."""
    flag, value = word.removeprefix("--").split("=")
    return {"True": f"--{flag}", "False": f"--no-{flag}"}.get(value, word)
