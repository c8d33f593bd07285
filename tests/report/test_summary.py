"""Run summaries: written, read back, and printed with the next command."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from convoy.errors import ConfigError
from convoy.report.summary import AverageSummary, FineTuneSummary, Summary, closing_lines

DONE = Summary(
    weights_sha256="0123456789abcdef" * 4,
    top1=0.842,
    top5=0.99,
    updates=1250,
    epochs=5.0,
    images=80_000,
    images_per_second=412.3,
    seconds=195.0,
    layout="2 stages × 2 replicas",
    exit_reason="done",
    model="resnet18",
    dataset="shapes",
)
AVERAGE = AverageSummary(
    path="checkpoints/averaged/mean-5-keep/update-1250",
    strategy="mean",
    checkpoints=5,
    weights_sha256="fedcba9876543210" * 4,
    top1=0.851,
    top5=0.992,
)
AVERAGED = replace(DONE, averaged=AVERAGE, init_path="runs/before")
EMA = replace(AVERAGE, path="checkpoints/averaged/ema-0.9/update-9", strategy="ema", checkpoints=0)
FINE_TUNED = FineTuneSummary(
    path="fine-tune",
    exit_reason="done",
    weights_sha256="89abcdef01234567" * 4,
    top1=0.861,
    top5=0.993,
    updates=80,
    epochs=2.0,
)
WITH_FINE_TUNING = replace(AVERAGED, fine_tune=FINE_TUNED)
PREEMPTED = Summary(
    updates=0, epochs=0.0, images=0, seconds=0.1, layout="1", exit_reason="preempted"
)


@pytest.mark.parametrize(
    "summary",
    [
        replace(DONE, live_average=EMA),
        replace(DONE, skipped_updates=3),
        DONE,
        AVERAGED,
        WITH_FINE_TUNING,
        PREEMPTED,
    ],
)
def test_a_written_summary_is_read_back_equal(tmp_path: Path, summary: Summary):
    summary.write(tmp_path / "summary.json")

    assert Summary.read(tmp_path / "summary.json") == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("reason", "code"), [("done", 0), ("limit", 75), ("preempted", 75), ("interrupted", 130)]
)
def test_the_exit_code_is_that_of_the_last_phase(reason: str, code: int):
    tuned = replace(FINE_TUNED, exit_reason=reason)

    assert replace(DONE, exit_reason=reason).exit_code == code
    assert replace(DONE, fine_tune=tuned).exit_code == code
    assert replace(PREEMPTED, fine_tune=replace(FINE_TUNED, exit_reason="pending")).exit_code == 75


def test_the_file_contains_every_documented_key(tmp_path: Path):
    PREEMPTED.write(tmp_path / "summary.json")
    keys = json.loads((tmp_path / "summary.json").read_text()).keys()

    assert keys >= {
        "weights_sha256",
        "top1",
        "top5",
        "updates",
        "epochs",
        "images",
        "images_per_second",
        "seconds",
        "layout",
        "exit_reason",
    }


def test_non_finite_numbers_are_read_back(tmp_path: Path):
    replace(DONE, top1=math.nan, images_per_second=math.inf).write(tmp_path / "s.json")
    summary = Summary.read(tmp_path / "s.json")

    assert summary.top1 is not None
    assert math.isnan(summary.top1)
    assert summary.images_per_second == math.inf


def test_unknown_keys_are_ignored(tmp_path: Path):
    (tmp_path / "s.json").write_text(json.dumps({**asdict(DONE), "unknown": 3}))

    assert Summary.read(tmp_path / "s.json") == DONE


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"updates": 1',
        "[" * 100_000,
        json.dumps({**asdict(DONE), "updates": "many"}),
        json.dumps({**asdict(DONE), "top1": True}),
        json.dumps({**asdict(DONE), "updates": "inf"}),
        json.dumps({**asdict(DONE), "layout": 7}),
        json.dumps({**asdict(DONE), "init_path": 7}),
        json.dumps({**asdict(DONE), "averaged": 7}),
        json.dumps({**asdict(DONE), "averaged": {"path": "a", "strategy": "mean"}}),
        json.dumps({**asdict(DONE), "fine_tune": 7}),
        json.dumps({**asdict(DONE), "peak_bytes": 7}),
        json.dumps({**asdict(DONE), "peak_bytes": [0.5]}),
        json.dumps({**asdict(DONE), "exit_reason": None}),
        json.dumps({**asdict(DONE), "fine_tune": {"path": "a", "updates": 3}}),
    ],
)
def test_an_invalid_summary_is_refused_with_its_path(tmp_path: Path, content: str):
    (tmp_path / "s.json").write_text(content)

    with pytest.raises(ConfigError, match=r"s\.json is not a valid run summary"):
        Summary.read(tmp_path / "s.json")


def test_a_missing_summary_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        Summary.read(tmp_path / "s.json")


def test_a_complete_run_prints_its_result_and_suggests_validate():
    assert closing_lines(DONE, Path("runs/my run")) == [
        "trained resnet18 on shapes, 2 stages × 2 replicas",
        "1250 updates, 5 epochs, 80000 images in 3:15, 412 images/s",
        "validation: top-1 84.2 %, top-5 99.0 %",
        "weights: sha256 0123456789ab…",
        "run folder: runs/my run",
        "next: convoy validate 'runs/my run'",
    ]


def test_an_average_and_initial_weights_are_printed():
    lines = closing_lines(AVERAGED, Path("runs/a"))
    without_scores = replace(AVERAGE, top1=None, top5=None, checkpoints=1)

    assert lines[2:5] == [
        "initial weights: runs/before",
        "validation: top-1 84.2 %, top-5 99.0 %",
        "average: mean of 5 checkpoints, top-1 85.1 %, top-5 99.2 %, "
        "checkpoints/averaged/mean-5-keep/update-1250",
    ]
    assert (
        "average: mean of 1 checkpoint, checkpoints/averaged/mean-5-keep/update-1250"
        in closing_lines(replace(DONE, averaged=without_scores), Path("runs/a"))
    )


def test_an_ema_is_printed_before_the_average_of_checkpoints():
    lines = closing_lines(replace(AVERAGED, live_average=EMA), Path("runs/a"))

    assert lines[4] == (
        "average: ema over all updates, top-1 85.1 %, top-5 99.2 %, "
        "checkpoints/averaged/ema-0.9/update-9"
    )
    assert lines[5].startswith("average: mean of 5 checkpoints")


def test_a_fine_tuned_run_prints_the_result_of_fine_tuning():
    lines = closing_lines(WITH_FINE_TUNING, Path("runs/a"))

    assert lines[-4:] == [
        "fine-tuned: 80 updates, 2 epochs, top-1 86.1 %, top-5 99.3 %, fine-tune",
        "weights: sha256 89abcdef0123…",
        "run folder: runs/a",
        "next: convoy validate runs/a",
    ]


@pytest.mark.parametrize(
    ("exit_reason", "fine_tune_exit_reason", "line"),
    [
        (
            "done",
            "preempted",
            "fine-tuned: 80 updates, 2 epochs, fine-tune (stopped: preempted)",
        ),
        ("limit", "pending", "fine-tuning: pending"),
    ],
)
def test_a_run_with_incomplete_fine_tuning_suggests_resume(
    exit_reason: str, fine_tune_exit_reason: str, line: str
):
    fine_tuned = replace(
        FINE_TUNED, exit_reason=fine_tune_exit_reason, top1=None, weights_sha256=None
    )
    summary = replace(DONE, exit_reason=exit_reason, fine_tune=fine_tuned)
    lines = closing_lines(summary, Path("runs/a"))

    assert summary.final_exit_reason == (
        exit_reason if exit_reason != "done" else fine_tune_exit_reason
    )
    assert lines[-4:] == [
        line,
        "weights: sha256 0123456789ab…",
        "run folder: runs/a",
        "next: convoy resume runs/a",
    ]


def test_a_preempted_run_suggests_resume():
    assert closing_lines(PREEMPTED, Path("runs/net-3")) == [
        "trained a model, 1 (stopped: preempted)",
        "0 updates, 0 epochs, 0 images in 0:00",
        "run folder: runs/net-3",
        "next: convoy resume runs/net-3",
    ]


def test_skipped_updates_are_printed_if_there_are_any():
    with_skipped = closing_lines(replace(DONE, skipped_updates=3), Path("r"))
    without = closing_lines(DONE, Path("r"))

    assert [line for line in with_skipped if line not in without] == ["skipped updates: 3"]


@pytest.mark.parametrize(
    ("updates", "epochs", "text"),
    [
        (1, 1.0, "1 update, 1 epoch, "),
        (1, 0.5, "1 update, 0.5 epochs, "),
        (2, 2, "2 updates, 2 ep"),
    ],
)
def test_a_count_of_one_is_singular(updates: int, epochs: float, text: str):
    run = replace(DONE, updates=updates, epochs=epochs)
    fine_tuned = replace(DONE, fine_tune=replace(FINE_TUNED, updates=updates, epochs=epochs))

    assert closing_lines(run, Path("runs"))[1].startswith(text)
    assert f"fine-tuned: {text}" in "\n".join(closing_lines(fine_tuned, Path("runs")))
