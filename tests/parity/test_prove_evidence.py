"""Long tests: every layout, every resumed run and every killed run has the same bits.

`pytest tests/parity/test_prove_evidence.py -m evidence -s` prints a summary.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import TINY, convoy, convoy_process

pytestmark = [pytest.mark.processes, pytest.mark.evidence, pytest.mark.timeout(3600)]

NETWORKS = {
    "ResNet-20, batch norm": ("--model=resnet20", "--norm-type=batch"),
    "ResNet-14, group norm": ("--model=resnet14", "--norm-type=group"),
}


@pytest.fixture(scope="module", params=NETWORKS)
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """All rows of a proof of 20 updates."""
    result = convoy("prove", *NETWORKS[request.param], "--updates=20", "--json")
    assert (result.code, result.err) == (0, "")
    rows: list[dict[str, Any]] = json.loads(result.out)["layouts"]
    print(f"\n{request.param}: {_summary(rows)}")
    return rows


def _summary(rows: list[dict[str, Any]]) -> str:
    full, continued, fast = (len(select(rows)) for select in (uninterrupted, resumed, inexact))
    differences = ", ".join(f"{item['difference']:.1e}" for item in inexact(rows))
    return (
        f"{full} exact layouts, {continued} resumed runs, {fast} fast layouts that differ by "
        f"{differences}, {sum(row['seconds'] for row in rows):.0f} s of training, "
        f"sha256 {rows[0]['weights_sha256']}"
    )


def uninterrupted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["exact"] and row["resumed_from"] is None]


def resumed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["exact"] and row["resumed_from"] is not None]


def inexact(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not row["exact"]]


def test_all_layouts_have_the_weights_of_one_process(found: list[dict[str, Any]]) -> None:
    layouts = uninterrupted(found)
    first = layouts[0]

    assert (first["stages"], first["replicas"]) == (1, 1)
    assert len(layouts) >= 24
    assert {layout["weights_sha256"] for layout in layouts} == {first["weights_sha256"]}
    assert all(layout["equal"] for layout in layouts)


def test_all_layouts_are_different_and_cover_every_choice(found: list[dict[str, Any]]) -> None:
    layouts = uninterrupted(found)
    choices = ("stages", "replicas", "schedule", "recompute", "offload", "sharding", "workers")
    seen = {choice: {layout[choice] for layout in layouts} for choice in choices}

    assert len({tuple(layout[choice] for choice in choices) for layout in layouts}) == len(layouts)
    assert seen["stages"] == seen["replicas"] == {1, 2, 3, 4}
    assert seen["schedule"] == {
        None,
        "grouped",
        "interleaved",
        "sequential",
        "zero-bubble",
        "looped",
    }
    assert all(seen[name] == {False, True} for name in ("recompute", "offload", "sharding"))
    assert seen["workers"] == {0, 2}
    assert max(len(layout["peak_bytes"]) * layout["replicas"] for layout in layouts) == 8


def test_each_of_four_layouts_resumes_the_runs_of_the_others(found: list[dict[str, Any]]) -> None:
    resumed_rows = resumed(found)

    assert len(resumed_rows) == 12
    assert len({item["resumed_from"] for item in resumed_rows}) == 4
    assert len({item["layout"] for item in resumed_rows}) == 12
    assert {item["weights_sha256"] for item in resumed_rows} == {found[0]["weights_sha256"]}


def test_the_fast_reduction_is_reported_with_its_difference(found: list[dict[str, Any]]) -> None:
    differences = [item["difference"] for item in inexact(found)]

    assert len(differences) == 1
    assert 0 < differences[0] < 1  # rounding differences grow with every update


# TINY with four micro-batches per update and four updates per epoch, saved after every second one.
CHANGED = ("--gradient", "--epoch", "--dataloader", "--samples")
OPTIONS = [item for item in TINY if not item.startswith(CHANGED)]
OPTIONS += ["--samples=128", "--updates=8", "--ckpts-per-epoch=2"]

LAYOUTS = {
    "one process": ("--gradient-accumulation=4",),
    "two stages": ("--shards=2", "--gradient-accumulation=4", "--pipeline-schedule=grouped"),
    "three stages": (
        "--shards=3",
        "--pipeline-splits",
        "layer1/0/bn1",
        "layer3/0/conv2",
        "--pipeline-schedule=sequential",
        "--gradient-accumulation=4",
        "--no-enable-recompute",
    ),
    "two replicas of two stages": (
        "--replicas=2",
        "--shards=2",
        "--gradient-accumulation=2",
        "--enable-optimizer-rts",
        "--offload-optimizer",
    ),
    "four replicas": ("--replicas=4", "--gradient-accumulation=1", "--enable-optimizer-rts"),
}
# Resets the options of the earlier layout.
DEFAULT_LAYOUT = (
    "--shards=1",
    "--replicas=1",
    "--no-enable-optimizer-rts",
    "--no-offload-optimizer",
    "--pipeline-schedule=interleaved",
)
CHANGES = (
    ("two stages", "four replicas"),
    ("four replicas", "two replicas of two stages"),
    ("two replicas of two stages", "three stages"),
    ("two replicas of two stages", "one process"),
)
LOADERS = ((0, 2), (2, 0))
# Rank 0 while it saves, rank 1 an update after a save, and rank 1 while rank 0 saves.
KILLS = ("kill@4:0", "kill@5:1", "kill@6:1")


def result_of(run: Path) -> dict[str, Any]:
    """Digests of the weights, statistics and optimizer state of a run."""
    summary = json.loads((run / "summary.json").read_text())
    manifest = json.loads((run / "checkpoints/update-8/MANIFEST.json").read_text())
    files = manifest["files"]
    names = ("model.safetensors", "optimizer.safetensors")
    return {
        "updates": summary["updates"],
        "weights": summary["weights_sha256"],
        **{name: files[name] for name in names},
    }


@pytest.fixture(scope="module")
def uninterrupted_result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert convoy("train", *OPTIONS, *LAYOUTS["one process"], "--output", run).code == 0
    return result_of(run)


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("loaders", LOADERS)
def test_a_killed_run_resumed_in_another_layout_has_the_same_bits(
    before: str,
    after: str,
    loaders: tuple[int, int],
    kill: str,
    uninterrupted_result: dict[str, Any],
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    workers, other = (f"--dataloader-worker={count}" for count in loaders)
    command = ("train", *OPTIONS, *LAYOUTS[before], workers, "--output", run)
    killed = convoy_process(*command, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": kill})
    continued = convoy("resume", run, *DEFAULT_LAYOUT, *LAYOUTS[after], other)

    assert killed.code == 7
    assert f"(rank {kill.partition(':')[2]}) was killed by SIGKILL" in killed.err
    assert (continued.code, continued.err) == (0, "")
    assert result_of(run) == uninterrupted_result


def test_layouts_loaders_and_kills_make_24_combinations() -> None:
    assert len(list(product(CHANGES, LOADERS, KILLS))) == 24
