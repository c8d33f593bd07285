"""Runs that average their checkpoints at the end, like `convoy average`."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import TINY, convoy, convoy_process

FREQUENT_CHECKPOINTS = [*TINY, "--ckpts-per-epoch=2"]
VALIDATED = "--validation-mode=after"


def summary(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return record


def trained(run: Path, *words: str) -> dict[str, Any]:
    result = convoy("train", *FREQUENT_CHECKPOINTS, *words, "--output", run)
    assert (result.code, result.err) == (0, "")
    return summary(run)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("plain") / "run"
    assert trained(run)["averaged"] is None
    return run


@pytest.mark.parametrize(
    "words",
    [
        ("--weight-avg-strategy=mean",),
        ("--weight-avg-strategy=mean", "--weight-avg-n=2", "--norm-statistics=keep"),
        ("--weight-avg-strategy=exponential", "--weight-avg-exp-decay=0.6"),
    ],
)
def test_a_run_averages_like_convoy_average(
    tmp_path: Path, plain: Path, words: tuple[str, ...]
) -> None:
    averaged = trained(tmp_path / "run", VALIDATED, *words)["averaged"]
    result = convoy("average", plain, *words)
    path = Path(result.out.split("  ")[0])
    (score,) = [json.loads(convoy("validate", path, "--json").out)]

    assert averaged["path"] == str(path.relative_to(plain))
    assert (tmp_path / "run" / averaged["path"] / "MANIFEST.json").is_file()
    assert averaged["weights_sha256"] == score["weights_sha256"]
    assert (averaged["top1"], averaged["top5"]) == (score["top1"], score["top5"])
    assert f"{averaged['strategy']} of {averaged['checkpoints']} checkpoints" in result.out


def test_the_average_is_reported_and_does_not_change_the_training(
    tmp_path: Path, plain: Path
) -> None:
    run = tmp_path / "run"
    words = ("--weight-avg-strategy=mean", VALIDATED, "--output", run)
    result = convoy("train", *FREQUENT_CHECKPOINTS, *words)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    validations = (run / "validation.jsonl").read_text().splitlines()

    assert summary(run)["weights_sha256"] == summary(plain)["weights_sha256"]
    assert summary(run)["top1"] == json.loads(validations[0])["top1"]
    assert len(validations) == 1  # only the final weights
    assert [event["event"] for event in events][-2:] == ["averaged", "ended"]
    assert events[-2]["top1"] == summary(run)["averaged"]["top1"] is not None
    assert "average: mean of 4 checkpoints, top-1 " in result.out


def test_an_average_is_not_validated_without_validation(tmp_path: Path) -> None:
    averaged = trained(tmp_path / "run", "--weight-avg-strategy=mean")["averaged"]

    assert (averaged["checkpoints"], averaged["top1"], averaged["top5"]) == (4, None, None)


def test_only_saved_checkpoints_are_averaged(tmp_path: Path) -> None:
    words = ("--weight-avg-strategy=mean", "--keep-last=3")

    assert trained(tmp_path / "run", *words)["averaged"]["checkpoints"] == 3


@pytest.mark.processes
@pytest.mark.parametrize("layout", [("--shards=2",), ("--replicas=2", "--gradient-accumulation=1")])
def test_several_processes_compute_the_same_average(
    tmp_path: Path, layout: tuple[str, ...]
) -> None:
    words = ("--weight-avg-strategy=mean", VALIDATED)
    expected = trained(tmp_path / "single", *words)["averaged"]

    assert trained(tmp_path / "run", *words, *layout)["averaged"] == expected


def test_averaging_without_checkpoints_is_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--weight-avg-strategy=mean", "--ckpts-per-epoch=0", "--output", run)
    result = convoy("train", *TINY, *words)

    assert result.code == 0
    (notice,) = (line for line in result.out.splitlines() if line.startswith("notice"))
    assert "--weight-avg-strategy has no effect with --ckpts-per-epoch 0" in notice
    assert "no checkpoints" in notice
    assert summary(run)["averaged"] is None
    assert list((run / "checkpoints").iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize("layout", [(), ("--shards=2",)])
def test_a_run_stopped_before_averaging_averages_on_resume(
    tmp_path: Path, layout: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    words = ("train", *FREQUENT_CHECKPOINTS, "--weight-avg-strategy=mean", *layout, "--output", run)
    faults = {"CONVOY_TEST_FAULTS": "term@12"}
    stopped = convoy_process(*words, scratch=tmp_path, env=faults)
    first = summary(run)
    resumed = convoy("resume", run)
    second = summary(run)

    assert (stopped.code, resumed.code) == (75, 0)
    assert (first["exit_reason"], first["averaged"]) == ("preempted", None)
    assert (second["exit_reason"], second["averaged"]["checkpoints"]) == ("done", 4)
    assert first["weights_sha256"] == second["weights_sha256"]


def test_a_limit_at_the_last_update_does_not_prevent_averaging(tmp_path: Path) -> None:
    record = trained(tmp_path / "run", "--weight-avg-strategy=mean", "--stop-after=12")

    assert (record["exit_reason"], record["averaged"]["checkpoints"]) == ("done", 4)


def test_convoy_average_uses_the_strategy_of_the_run_or_the_mean(
    tmp_path: Path, plain: Path
) -> None:
    words = ("--weight-avg-strategy=exponential", "--norm-statistics=keep")
    trained(tmp_path / "run", *words)

    assert "exponential of 4 checkpoints" in convoy("average", tmp_path / "run").out
    assert "mean of 4 checkpoints" in convoy("average", plain).out


def test_convoy_average_refuses_the_strategy_none(plain: Path) -> None:
    result = convoy("average", plain, "--weight-avg-strategy=none")

    assert result.code == 2
    assert result.err.startswith("convoy: --weight-avg-strategy none ")
    assert "use mean or exponential" in result.err
    assert result.err.count("\n") == 1
