"""The long proofs: every layout, every crossing and every kill comes to the same bits.

`pytest tests/parity/test_prove_evidence.py -m evidence -s` prints what was found.
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
    print(f"\n{request.param}: {_told(rows)}")
    return rows


def _told(rows: list[dict[str, Any]]) -> str:
    full, crossed, fast = (len(kind(rows)) for kind in (in_one_go, crossings, inexact))
    differences = ", ".join(f"{item['difference']:.1e}" for item in inexact(rows))
    return (
        f"{full} exact layouts, {crossed} crossings, {fast} fast ones that differ by "
        f"{differences}, {sum(row['seconds'] for row in rows):.0f} s of training, "
        f"sha256 {rows[0]['weights_sha256']}"
    )


def in_one_go(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["exact"] and row["resumed_from"] is None]


def crossings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["exact"] and row["resumed_from"] is not None]


def inexact(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not row["exact"]]


def test_all_layouts_have_the_weights_of_one_process(found: list[dict[str, Any]]) -> None:
    layouts = in_one_go(found)
    first = layouts[0]

    assert (first["stages"], first["replicas"]) == (1, 1)
    assert len(layouts) >= 24
    assert {layout["weights_sha256"] for layout in layouts} == {first["weights_sha256"]}
    assert all(layout["equal"] for layout in layouts)


def test_all_layouts_are_different_and_cover_every_choice(found: list[dict[str, Any]]) -> None:
    layouts = in_one_go(found)
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


def test_what_any_of_four_layouts_saves_any_other_resumes(found: list[dict[str, Any]]) -> None:
    crossed = crossings(found)

    assert len(crossed) == 12
    assert len({item["resumed_from"] for item in crossed}) == 4
    assert len({item["layout"] for item in crossed}) == 12
    assert {item["weights_sha256"] for item in crossed} == {found[0]["weights_sha256"]}


def test_the_quick_sum_is_told_with_its_difference(found: list[dict[str, Any]]) -> None:
    differences = [item["difference"] for item in inexact(found)]

    assert len(differences) == 1
    assert 0 < differences[0] < 1  # training is chaotic: rounding grows with every update


# TINY with four micro-batches an update; four updates an epoch, saved after every second one.
CHANGED = ("--gradient", "--epoch", "--dataloader", "--samples")
WORDS = [item for item in TINY if not item.startswith(CHANGED)]
WORDS += ["--samples=128", "--updates=8", "--ckpts-per-epoch=2"]

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
# What a layout says must not stay when another one takes over.
NOTHING = (
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
# Whoever keeps the run, while it writes a checkpoint; another, one update after; another at once.
KILLS = ("kill@4:0", "kill@5:1", "kill@6:1")


def kept(run: Path) -> dict[str, Any]:
    """What a run came to, to the bit: weights, statistics, optimizer state."""
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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert convoy("train", *WORDS, *LAYOUTS["one process"], "--output", run).code == 0
    return kept(run)


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("loaders", LOADERS)
def test_a_killed_run_goes_on_in_another_layout_to_the_same_bits(
    before: str,
    after: str,
    loaders: tuple[int, int],
    kill: str,
    undisturbed: dict[str, Any],
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    workers, other = (f"--dataloader-worker={count}" for count in loaders)
    words = ("train", *WORDS, *LAYOUTS[before], workers, "--output", run)
    killed = convoy_process(*words, scratch=tmp_path, env={"CONVOY_TEST_FAULTS": kill})
    went_on = convoy("resume", run, *NOTHING, *LAYOUTS[after], other)

    assert killed.code == 7
    assert f"(rank {kill.partition(':')[2]}) was killed by SIGKILL" in killed.err
    assert (went_on.code, went_on.err) == (0, "")
    assert kept(run) == undisturbed


def test_layouts_loaders_and_kills_make_24_combinations() -> None:
    assert len(list(product(CHANGES, LOADERS, KILLS))) == 24
