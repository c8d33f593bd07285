"""The learning rates of a run are those of its plan, also after a resume."""

import json
from pathlib import Path

import pytest
from support.run_convoy import TINY, convoy

BARE = [word for word in TINY if not word.startswith("--lr")]
STEP = ("--lr-schedule=step", "--lr-share-decay", "0.5", "0.75")
EVERY = ("--log-freq=1", "--warmup-epoch=0")


def rates(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["learning_rate"] for line in lines]


def digest(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["weights_sha256"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # 16 samples an update: 2^-9 × 16 = 1/32.
        (
            ("--base-learning-rate-exponent=-9", *STEP, "--lr-multipliers", "1", "2", "0.5"),
            [1 / 32] * 6 + [2 / 32] * 3 + [0.5 / 32] * 3,
        ),
        (
            ("--lr=0.02", "--lr-schedule=exponential", "--lr-decay=0.5", "--lr-drops=3"),
            [0.02] * 4 + [0.01] * 4 + [0.005] * 4,
        ),
        (
            (
                *("--lr=0.03", "--lr-schedule=polynomial", "--poly-lr-decay-power=1"),
                "--abs-end-learning-rate=0.015",
            ),
            [0.03 - 0.015 * update / 12 for update in range(12)],
        ),
    ],
)
def test_a_run_has_the_rates_of_its_options_and_keeps_them_on_resume(
    words: tuple[str, ...], expected: list[float], tmp_path: Path
) -> None:
    full, parts = tmp_path / "whole", tmp_path / "parts"
    assert convoy("train", *BARE, *words, *EVERY, "--output", full).code == 0
    assert convoy("train", *BARE, *words, *EVERY, "--stop-after=5", "--output", parts).code == 75
    result = convoy("resume", parts)

    assert result.code == 0, result.err
    assert rates(full) == rates(parts) == pytest.approx(expected)
    assert digest(full) == digest(parts)
